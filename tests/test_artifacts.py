"""Run folders: atomic files, manifests that refuse, logs that survive a cut."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from worldmodels import seeds
from worldmodels.errors import ArtifactError, ConfigError, Stopped
from worldmodels.files import weights
from worldmodels.files.atomic import JsonLines, atomic_path
from worldmodels.runs.artifacts import Run
from worldmodels.runs.tracking import MetricsLog, read_metrics


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(RuntimeError), atomic_path(path) as temporary:
        temporary.write_text("new")
        raise RuntimeError
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_is_one_line_and_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    path.write_text("old")
    full = pytest.raises(
        ArtifactError, match=r"weights.safetensors: No space left.*free some space"
    )
    with full, atomic_path(path) as temporary:
        temporary.symlink_to("/dev/full")  # the kernel's own full disk
        with temporary.open("w") as file:
            file.write("new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_killed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    script = f"""
import time
from pathlib import Path
from worldmodels.files.atomic import atomic_path
with atomic_path(Path({str(path)!r})) as temporary:
    temporary.write_text("half")
    print("writing", flush=True)
    time.sleep(1000)
"""
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "writing\n"
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert path.read_text() == "old"


def finished(run: Run, stage: str, **config: object) -> None:
    run.begin(stage, config, {}).finish("abc")


def test_the_same_stage_begun_again_is_complete(tmp_path: Path) -> None:
    run = Run(tmp_path / "run")
    finished(run, "vae", size=32)
    assert run.begin("vae", {"size": 32}, {}).complete
    assert run.fingerprint("vae") == "abc"


def test_another_configuration_is_refused_by_the_keys_name(tmp_path: Path) -> None:
    run = Run(tmp_path / "run")
    finished(run, "vae", **{"vae.latent_size": 32})
    with pytest.raises(ArtifactError, match=r"vae.latent_size=32, now 64.*overwrite=true"):
        run.begin("vae", {"vae.latent_size": 64}, {})
    assert not run.begin("vae", {"vae.latent_size": 64}, {}, overwrite=True).complete


def test_values_of_another_configuration_are_shown_as_a_command_line_takes_them(
    tmp_path: Path,
) -> None:
    run = Run(tmp_path / "run")
    was = {"rnn.layers": None, "env.squash": ["tanh", None], "rnn.is_first": True}
    finished(run, "rnn", **was)
    for key, now, said in (
        ("rnn.layers", 3, "rnn.layers=null, now 3:"),
        ("env.squash", None, "env.squash=[tanh, null], now null:"),
        ("rnn.is_first", False, "rnn.is_first=true, now false:"),
    ):
        with pytest.raises(ArtifactError, match=re.escape(f"was made with {said}")):
            run.begin("rnn", {**was, key: now}, {})


def test_another_input_is_refused_by_its_name(tmp_path: Path) -> None:
    run = Run(tmp_path / "run")
    run.begin("rnn", {}, {"vae": "one"}).finish("abc")
    with pytest.raises(ArtifactError, match="made from another vae"):
        run.begin("rnn", {}, {"vae": "two"})


def test_what_may_grow_reopens_the_stage_and_may_not_shrink(tmp_path: Path) -> None:
    run = Run(tmp_path / "run")
    finished(run, "rollouts", episodes=8)
    assert not run.begin("rollouts", {"episodes": 16}, {}, growable=("episodes",)).complete
    assert not run.begin("rollouts", {"episodes": None}, {}, growable=("episodes",)).complete
    with pytest.raises(ArtifactError, match="episodes=null, now 4"):
        run.begin("rollouts", {"episodes": 4}, {}, growable=("episodes",))


def test_a_missing_artifact_names_the_command_that_makes_it(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="mine/vae is missing: first run stage=vae with"):
        Run(tmp_path / "mine").locate("vae")


def test_a_base_run_serves_what_this_one_lacks(tmp_path: Path) -> None:
    base = Run(tmp_path / "base")
    finished(base, "vae")
    variant = Run(tmp_path / "variant", base)
    assert variant.locate("vae") == tmp_path / "base" / "vae"
    finished(variant, "vae")
    assert variant.locate("vae") == tmp_path / "variant" / "vae"


def test_a_base_run_serves_where_the_same_is_to_be_made(tmp_path: Path) -> None:
    base = Run(tmp_path / "base")
    base.begin("rnn", {"size": 32}, {"vae": "one"}).finish("abc")
    variant = Run(tmp_path / "variant", base)
    shared = variant.begin("rnn", {"size": 32}, {"vae": "one"}, share=True)
    assert (shared.path, shared.complete) == (tmp_path / "base" / "rnn", True)
    assert not variant.begin(
        "rnn", {"size": 32}, {"vae": "one"}, share=True, overwrite=True
    ).complete
    larger = Run(tmp_path / "larger", base).begin("rnn", {"size": 64}, {"vae": "one"}, share=True)
    assert (larger.path, larger.complete) == (tmp_path / "larger" / "rnn", False)
    assert larger.unlike == f"{tmp_path}/base/rnn was made with size=32, now 64"
    other = Run(tmp_path / "other", base).begin("rnn", {"size": 32}, {"vae": "two"}, share=True)
    assert other.unlike == f"{tmp_path}/base/rnn was made from another vae (one, now two)"


def test_a_torn_line_is_cut_off_and_the_log_goes_on(tmp_path: Path) -> None:
    log = JsonLines(tmp_path / "log.jsonl")
    log.append({"a": 0.1})
    with log.path.open("a") as file:
        file.write('{"a": 0.')
    assert log.read() == [{"a": 0.1}]
    log.append({"a": 0.2})
    assert log.read() == [{"a": 0.1}, {"a": 0.2}]


@pytest.fixture(autouse=True)
def denormal_numbers() -> None:
    """Training in the same process, in another test, sets them to zero, and hypothesis objects."""
    torch.set_flush_denormal(False)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1))
def test_fitness_survives_json_to_the_last_bit(values: list[float]) -> None:
    assert json.loads(json.dumps({"fitness": values}))["fitness"] == values


def test_checkpoints_keep_trees_of_tensors_and_numbers(tmp_path: Path) -> None:
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(3)).sum().backward()
    optimizer.step()
    path = tmp_path / "checkpoint.safetensors"
    weights.save(path, {"optimizer": optimizer.state_dict(), "step": 3, "carry": None})
    tree = weights.load(path)
    other = torch.optim.Adam(model.parameters())
    other.load_state_dict(tree["optimizer"])
    for key, value in optimizer.state_dict()["state"][0].items():
        assert torch.equal(value, other.state_dict()["state"][0][key])
    assert (tree["step"], tree["carry"]) == (3, None)


def test_weights_can_be_read_by_whom_the_umask_lets(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    before = os.umask(0o027)
    try:
        weights.save(path, {"x": torch.zeros(1)})
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o640


def test_a_damaged_checkpoint_is_named(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.safetensors"
    weights.save(path, {"x": torch.zeros(100)})
    path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(ArtifactError, match=r"checkpoint\.safetensors is damaged"):
        weights.load(path)


def test_metrics_after_the_checkpoint_are_rewound(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    first = MetricsLog(path)
    for step in range(5):
        first.log(step, {"loss": float(step)})
    first.flush()
    with MetricsLog(path) as second:
        second.rewind(2)
        second.log(3, {"loss": 30.0})
    rows = read_metrics(path)
    assert [(row[0], row[2]) for row in rows] == [(0, 0.0), (1, 1.0), (2, 2.0), (3, 30.0)]
    seconds = [row[3] for row in rows]
    assert seconds == sorted(seconds)


def test_metrics_that_are_damaged_are_named_and_a_row_of_the_checkpoint_is_not_doubled(
    tmp_path: Path,
) -> None:
    path = tmp_path / "metrics.csv"
    with MetricsLog(path) as log:
        log.log(1, {"loss": 1.0})
        log.log(2, {"selection/mean": 5.0})
    with MetricsLog(path) as again:
        again.rewind(2)
        again.log(2, {"selection/mean": 5.0, "selection/best": 6.0})
    names = [(row[0], row[1]) for row in read_metrics(path)]
    assert names == [(1, "loss"), (2, "selection/mean"), (2, "selection/best")]
    with path.open("ab") as file:
        file.write(b"3,\xff,1.0,0,\n")
    MetricsLog(path).rewind(2)
    with path.open("ab") as file:
        file.write(b"3," + b"x" * 200_000 + b",1.0,0,\n")
    with pytest.raises(ArtifactError, match=r"metrics\.csv: is not a file of metrics"):
        MetricsLog(path).rewind(2)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**31), st.integers(0, 50), st.integers(1, 200))
def test_seeds_of_different_purposes_never_meet(seed: int, generation: int, count: int) -> None:
    drawn = {p: seeds.draw(p, seed, generation, count=count) for p in seeds.Purpose}
    everything = [seed for part in drawn.values() for seed in part]
    assert len(set(everything)) == 3 * count
    assert all(seeds.EVALUATION_END <= seed < 2**31 for seed in everything)
    assert (
        seeds.draw(seeds.Purpose.ROLLOUTS, seed, generation, count=count + 5)[:count]
        == (drawn[seeds.Purpose.ROLLOUTS])
    )


def test_evaluation_seeds_outside_their_range_are_refused() -> None:
    assert seeds.evaluation(7, 3) == [7, 8, 9]
    with pytest.raises(ConfigError, match="first_seed"):
        seeds.evaluation(2**28, 1)


def test_time_is_counted_over_pauses(tmp_path: Path) -> None:
    run = Run(tmp_path / "run")
    with pytest.raises(Stopped), run.begin("vae", {}, {}):
        time.sleep(0.05)
        raise Stopped("SIGTERM")
    with run.begin("vae", {}, {}) as work:
        work.finish("abc")
    assert run.manifest("vae")["wall_s"] >= 0.05
    assert np.isfinite(run.manifest("vae")["wall_s"])
