"""A run that is killed once in each of its stages, each time on a machine that is lost with it."""

import json
import shutil
import signal
from pathlib import Path
from typing import Any

from command import ALONE, BRIEFLY, FEW_FRAMES, paused, run
from copies import equal, index, settled
from waiting import wait_for

WORDS = (
    *("preset=smoke", "run=smoke", "trainer.checkpoint_seconds=0", "env.num_envs=2", ALONE),
    *("vae.epochs=2", "evaluate.episodes=4", "controller.eval_interval=1"),
    *("mirror.interval=0.05", "mirror.cpu_share=1", *BRIEFLY, *FEW_FRAMES),
)
STAGES = {"rollouts": 4, "vae": 6, "rnn": 6, "controller": 4, "evaluate": 3}
"""The write at which the program is killed: the stage has progress by then."""
PROGRESS = {
    "rollouts": "shard-00001.h5",
    "vae": "checkpoint.safetensors",
    "rnn": "checkpoint.safetensors",
    "controller": "generations.jsonl",
    "evaluate": "agent.jsonl",
}


def manifest(root: Path, stage: str) -> dict[str, Any]:
    """The manifest of a stage of a run."""
    record: dict[str, Any] = json.loads((root / stage / "manifest.json").read_text())
    return record


def made(root: Path) -> dict[str, Any]:
    """Fingerprint, and SHA-256 of the files that later stages read, of each stage of a run."""
    records = {stage: manifest(root, stage) for stage in STAGES}
    return {stage: [one["fingerprint"], one["files"]] for stage, one in records.items()}


def killed_in_each_stage(folder: Path, *words: str) -> Path:
    """Run a chain that is killed by SIGKILL in each stage, and each time resumed from the store.

    Every command has an empty data folder of its own, as on another machine.

    Args:
        folder: for the data folders and the store.
        words: of the command line, such as `WORDS`.

    Returns:
        the folder of the run on the last machine.
    """
    store, machines = folder / "store", 0
    copied = (f"store={store}", f"resume={store}")
    for stage, number in STAGES.items():
        machines += 1
        data = folder / f"machine-{machines}"
        with paused(data, f"stage={stage}", *words, *copied, at_write=number) as running:
            wait_for(lambda root=data / "smoke": settled(root, store))  # type: ignore[misc]
            running.send(signal.SIGKILL)
            assert running.wait() == -signal.SIGKILL
        assert f"{stage}/{PROGRESS[stage]}" in index(store)
        assert manifest(data / "smoke", stage)["state"] == "running"
        shutil.rmtree(data)
        machines += 1
        data = folder / f"machine-{machines}"
        done = run(data, f"stage={stage}", *words, *copied)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "fetching" in done.stdout
        assert equal(data / "smoke", store)
        shutil.rmtree(data)
    last = folder / "last"
    done = run(last, "stage=all", *words, f"resume={store}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("done before") == len(STAGES)
    return last / "smoke"
