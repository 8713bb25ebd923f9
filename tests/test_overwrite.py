"""``overwrite=true``: the artifact that is there stays until its successor is finished."""

import json
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from command import ALONE, error_line, run

from worldmodels.errors import TrainingError
from worldmodels.runs.artifacts import Run

STAGES = ("rollouts", "vae", "rnn", "controller", "evaluate", "report")


def manifest(data: Path, stage: str) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((data / "smoke" / stage / "manifest.json").read_text())
    return record


def shown(folder: Path) -> list[str]:
    """The names that ``ls`` shows."""
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))


BAD = ("vae.epochs=4", "vae.learning_rate=1e6", "trainer.checkpoint_seconds=0")


def test_a_loss_that_is_not_finite_stops_and_keeps_the_last_checkpoint(copy: Path) -> None:
    shutil.rmtree(copy / "smoke/vae")
    line = error_line(run(copy, "stage=vae", "preset=smoke", *BAD))
    assert "smoke/vae: the loss is" in line
    assert (copy / "smoke/vae/checkpoint.safetensors").exists()


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (BAD, "the loss is"),
        (("device=cuda",), "device=cuda"),
        (("logger=wandb", "logger.mode=sideways"), "logger.mode: Invalid value 'sideways'"),
        (("env.squash=[warp,tanh,tanh]",), "env.squash"),
    ],
)
def test_what_cannot_be_made_anew_is_left_as_it_was(
    copy: Path, words: tuple[str, ...], said: str
) -> None:
    if "device=cuda" in words and torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    before = contents(copy / "smoke/vae")
    assert said in error_line(run(copy, "stage=vae", "preset=smoke", "overwrite=true", *words))
    assert contents(copy / "smoke/vae") == before
    assert shown(copy / "smoke") == sorted(STAGES)


@pytest.mark.system
def test_killed_while_made_anew_it_is_the_old_or_the_new_as_the_next_command_asks(
    copy: Path,
) -> None:
    vae = copy / "smoke/vae"
    # Batches of 256: few steps, for each of them is written down.
    small = ("vae.batch_size=256", "trainer.checkpoint_seconds=0", ALONE)
    anew = ("stage=vae", "preset=smoke", *small)
    old = manifest(copy, "vae")["fingerprint"]
    for number in (1, 2):  # before its manifest is there, and while it trains
        done = run(copy, *anew, "overwrite=true", kill_at_write=number)
        assert done.returncode == -signal.SIGKILL, done.stderr
        assert run(copy, "stage=vae", "preset=smoke", ALONE).returncode == 0
        assert manifest(copy, "vae")["fingerprint"] == old
    assert run(copy, *anew, "overwrite=true", kill_at_write=3).returncode == -signal.SIGKILL
    done = run(copy, *anew)  # goes on with what was begun
    assert done.returncode == 0, done.stderr
    new = manifest(copy, "vae")["fingerprint"]
    assert new != old
    assert shown(vae.parent) == sorted(STAGES)
    assert not [path for path in vae.parent.glob(".*") if path.is_dir()]  # nothing is left over


def fails(run: Run, config: dict[str, Any], overwrite: bool) -> None:
    """A stage that makes some progress and then fails."""
    with pytest.raises(TrainingError), run.begin("vae", config, {}, overwrite=overwrite) as folder:
        with (folder.path / "checkpoint").open("a") as file:
            file.write("step ")
        raise TrainingError("the loss is nan")


def test_the_progress_of_a_successor_that_fails_is_kept(tmp_path: Path) -> None:
    run = Run(tmp_path / "run")
    old, new = {"rate": 1}, {"rate": 2}
    with run.begin("vae", old, {}) as folder:
        folder.finish("old")
    fails(run, new, overwrite=True)
    assert run.fingerprint("vae") == "old"
    assert run.begin("vae", old, {}).complete
    fails(run, new, overwrite=False)  # goes on, and fails again
    assert run.fingerprint("vae") == "old"
    with run.begin("vae", new, {}) as folder:
        assert (folder.path / "checkpoint").read_text() == "step step "
        folder.finish("new")
    assert run.fingerprint("vae") == "new"
    assert shown(tmp_path / "run") == ["vae"]
    assert [path.name for path in (tmp_path / "run").glob(".*")] == [".vae.lock"]


def test_a_deletion_that_was_killed_is_finished_by_the_same_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(tmp_path / "run")
    with run.begin("vae", {"rate": 1}, {}) as folder:
        folder.finish("old")

    def killed(doomed: Path) -> None:
        next(doomed.iterdir()).unlink()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, run.begin("vae", {"rate": 2}, {}, overwrite=True) as new:
        patch.setattr(shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            new.finish("new")
    assert len([*(tmp_path / "run").glob(".*.removed")]) == 1
    assert run.begin("vae", {"rate": 2}, {}).complete
    assert run.fingerprint("vae") == "new"
    assert [path.name for path in (tmp_path / "run").iterdir() if path.is_dir()] == ["vae"]


def test_overwrite_begins_again_from_nothing_after_a_failure(tmp_path: Path) -> None:
    run = Run(tmp_path / "run")
    with run.begin("vae", {"rate": 1}, {}) as folder:
        folder.finish("old")
    for _ in range(2):
        fails(run, {"rate": 2}, overwrite=True)
    with run.begin("vae", {"rate": 2}, {}) as folder:
        assert (folder.path / "checkpoint").read_text() == "step "


@pytest.mark.parametrize("killed_after", ["set aside", "restored half", "resumed half"])
def test_a_kill_between_two_renames_loses_neither(tmp_path: Path, killed_after: str) -> None:
    run = Run(tmp_path / "run")
    with run.begin("vae", {"rate": 1}, {}) as folder:
        folder.finish("old")
    if killed_after == "set aside":
        (tmp_path / "run/vae").rename(tmp_path / "run/.vae.replaced")
    else:  # the two renames of both meet in the same state
        fails(run, {"rate": 2}, overwrite=True)
        (tmp_path / "run/vae").rename(tmp_path / "run/.vae.replaced")
    if killed_after == "resumed half":
        with run.begin("vae", {"rate": 2}, {}) as folder:
            assert (folder.path / "checkpoint").read_text() == "step "
            folder.finish("new")
        assert run.fingerprint("vae") == "new"
    else:
        with run.begin("vae", {"rate": 1}, {}) as folder:
            assert folder.complete
        assert run.fingerprint("vae") == "old"
