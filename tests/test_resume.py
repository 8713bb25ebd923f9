"""Kill, resume, compare: the artifact is the one that an uninterrupted run makes."""

import json
import random
import shutil
import signal
import time
from pathlib import Path

import pytest
from command import ALONE, BRIEFLY, run, start

from worldmodels.files.atomic import JsonLines, read_json, write_json
from worldmodels.runs.tracking import read_metrics

SEARCH = (
    "controller.generations=12",
    "controller.eval_interval=4",
    "controller.first_episodes=2",
    "controller.episodes=6",
    "controller.stall_steps=15",
    "controller.pca_components=12",
    "controller.diagonal=true",
    "controller.total_steps=9_000",
    "controller.final_sigma=0.02",
)
BASE = ("preset=smoke", "trainer.checkpoint_seconds=0.1", "rnn.baselines=false", "env.num_envs=2")
LONG = {
    "rollouts": ("rollouts.episodes=24", "rollouts.max_steps=150", "env.max_steps=150"),
    "vae": ("vae.epochs=2",),
    "rnn": ("rnn.epochs=20",),
    "controller": SEARCH,
    "evaluate": ("evaluate.episodes=24", "evaluate.video=false"),
}
"""Work of some seconds for each stage, so that there is a middle to be killed in."""


def overrides(stage: str) -> list[str]:
    return [*BASE, f"stage={stage}", *LONG[stage]]


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every stage without interruption."""
    data = tmp_path_factory.mktemp("reference")
    for stage in LONG:
        done = run(data, *overrides(stage))
        assert done.returncode == 0, done.stdout + done.stderr
    return data


def fingerprint(data: Path, stage: str) -> str:
    return str(json.loads((data / "smoke" / stage / "manifest.json").read_text())["fingerprint"])


def working(folder: Path, since: float) -> bool:
    """Whether the stage has written anything: killing the imports proves nothing."""
    try:
        return any(path.stat().st_mtime >= since for path in folder.rglob("*"))
    except FileNotFoundError:  # a temporary file that was renamed meanwhile
        return True


def killed_until_done(data: Path, stage: str, kills: int, rng: random.Random) -> None:
    """Kill the stage at `kills` random moments of its work, then let it finish.

    A stage that ends before its last kill begins again from nothing, with moments drawn from
    half the time: how long the work takes is the machine's business.
    """
    folder, seconds, hits = data / "smoke" / stage, 6.0, 0
    while hits < kills:
        assert seconds > 0.02, f"{stage} ends before it can be killed {kills} times"
        since = time.time()
        process = start(data, *overrides(stage))
        while process.poll() is None and not working(folder, since):
            time.sleep(0.01)
        time.sleep(rng.uniform(0.0, seconds))
        if process.poll() is None:
            process.kill()
            hits += 1
        else:
            assert process.returncode == 0, process.communicate()[1]
            shutil.rmtree(folder)
            seconds, hits = seconds / 2, 0
        process.communicate()
    done = run(data, *overrides(stage))
    assert done.returncode == 0, done.stdout + done.stderr


def selected(path: Path) -> list[tuple[int, str, float]]:
    """The rows of evaluations on the selection seeds, without their times."""
    return [row[:3] for row in read_metrics(path) if row[1].startswith("selection/")]


def copy_upstream(reference: Path, data: Path, stage: str) -> None:
    for earlier in list(LONG)[: list(LONG).index(stage)]:
        shutil.copytree(reference / "smoke" / earlier, data / "smoke" / earlier)


@pytest.mark.parametrize(
    ("stage", "more", "kills"),
    [
        pytest.param("rollouts", (), (1, 2, 3), marks=pytest.mark.system),
        pytest.param("vae", (), (2, 3, 4), marks=pytest.mark.system),
        pytest.param("vae", ("vae.encoder=conv3d",), (2, 3, 4), marks=pytest.mark.system),
        ("rnn", (), (2, 3, 4, 5)),
        pytest.param("rnn", ("rnn.model=gru",), (3,), marks=pytest.mark.system),
        pytest.param("rnn", ("rnn.members=2",), (8, 10, 8), marks=pytest.mark.system),
        pytest.param("rnn", ("rnn.model=transformer",), (2, 3, 4), marks=pytest.mark.system),
        pytest.param(
            "controller",
            (*SEARCH, "controller.generations=6"),
            (2, 3, 4),
            marks=pytest.mark.system,
        ),
        pytest.param(
            "controller",
            (*SEARCH, "controller.generations=5", "controller.overlap=true"),
            (3, 4),
            marks=pytest.mark.system,
        ),
        pytest.param(
            "evaluate",
            ("evaluate.episodes=8", *BRIEFLY[1:]),
            (2, 2, 2),
            marks=pytest.mark.system,
        ),
    ],
)
def test_killed_where_it_writes(
    smoke: Path, tmp_path: Path, stage: str, more: tuple[str, ...], kills: tuple[int, ...]
) -> None:
    """Each attempt dies at its write number so many; the last one ends with the same artifact."""
    words = ("preset=smoke", f"stage={stage}", "trainer.checkpoint_seconds=0", ALONE, *more)
    whole, killed = smoke, tmp_path / "killed"
    if more:
        whole = tmp_path / "whole"
        copy_upstream(smoke, whole, stage)
        done = run(whole, *words)
        assert done.returncode == 0, done.stderr
    copy_upstream(smoke, killed, stage)
    for number in kills:
        done = run(killed, *words, kill_at_write=number)
        assert done.returncode == -signal.SIGKILL, done.stdout + done.stderr
    done = run(killed, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    assert fingerprint(killed, stage) == fingerprint(whole, stage)
    if stage == "controller":
        folders = (data / "smoke/controller" for data in (killed, whole))
        found, expected = (selected(folder / "metrics.csv") for folder in folders)
        assert found == expected
    assert not list(killed.rglob(".*.tmp"))


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("stage", list(LONG))
def test_many_kills_at_random_moments(reference: Path, tmp_path: Path, stage: str) -> None:
    copy_upstream(reference, tmp_path, stage)
    rng = random.Random()
    killed_until_done(tmp_path, stage, 3, rng)
    assert fingerprint(tmp_path, stage) == fingerprint(reference, stage)


@pytest.mark.slow
@pytest.mark.parametrize("processes", [0, 1, 3])
def test_the_number_of_workers_changes_nothing(
    reference: Path, tmp_path: Path, processes: int
) -> None:
    copy_upstream(reference, tmp_path, "controller")
    done = run(tmp_path, *overrides("controller"), f"workers.processes={processes}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert fingerprint(tmp_path, "controller") == fingerprint(reference, "controller")


@pytest.mark.slow
def test_more_episodes_are_added_to_those_that_are_there(reference: Path, tmp_path: Path) -> None:
    few = [*overrides("rollouts"), "rollouts.episodes=7"]
    assert run(tmp_path, *few).returncode == 0
    done = run(tmp_path, *overrides("rollouts"))
    assert done.returncode == 0, done.stderr
    assert fingerprint(tmp_path, "rollouts") == fingerprint(reference, "rollouts")


def test_a_stage_continues_on_another_device(copy: Path) -> None:
    manifest = copy / "smoke/rollouts/manifest.json"
    before = read_json(manifest)
    other = before | {"state": "running", "device": "NVIDIA H200, bfloat16"}
    del other["crc32"]
    write_json(manifest, other)
    done = run(copy, "stage=rollouts", "preset=smoke", ALONE)
    assert done.returncode == 0, done.stdout + done.stderr
    after = read_json(manifest)
    for key in ("state", "fingerprint", "device"):  # of the process that finished it
        assert after[key] == before[key]


def test_the_evaluation_at_the_end_of_a_search_counts_for_nothing_once_it_is_continued(
    copy: Path,
) -> None:
    words = (
        *("stage=controller", "preset=smoke", "run=it", "base=smoke"),
        *("controller.eval_interval=2", ALONE),
    )
    assert run(copy, *words, "controller.generations=1").returncode == 0
    log = JsonLines(copy / "it/controller/selection.jsonl")
    (record,) = log.read()
    log.path.unlink()
    log.append({**record, "score": 1e9, "objective": 1e9})
    done = run(copy, *words, "controller.generations=3")
    assert done.returncode == 0, done.stderr
    assert [one["generation"] for one in log.read()] == [0, 1, 2]
    summary = json.loads((copy / "it/controller/manifest.json").read_text())["summary"]
    assert summary["selection_mean"] < 1e9


def test_a_finished_search_is_continued_for_more_generations(copy: Path) -> None:
    log = copy / "smoke/controller/generations.jsonl"
    before = log.read_text()
    words = ("stage=controller", "preset=smoke", "controller.generations=3", ALONE)
    done = run(copy, *words)
    assert done.returncode == 0, done.stderr
    assert log.read_text().startswith(before)
    assert len(log.read_text().splitlines()) == len(before.splitlines()) + 1 == 3
