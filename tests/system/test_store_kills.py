"""SIGKILL in each stage, and the run continued in an empty folder from the store alone."""

import json
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from command import ALONE, BRIEFLY, FEW_FRAMES, paused, run
from copies import equal, index, settled
from waiting import wait_for

pytestmark = pytest.mark.system

WORDS = (
    *("preset=smoke", "trainer.checkpoint_seconds=0", "env.num_envs=2", ALONE),
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


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run without a store and without a kill."""
    data = tmp_path_factory.mktemp("whole")
    done = run(data, "stage=all", *WORDS)
    assert done.returncode == 0, done.stdout + done.stderr
    return data / "smoke"


def manifest(root: Path, stage: str) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((root / stage / "manifest.json").read_text())
    return record


def test_killed_in_each_stage_and_resumed_from_the_store_alone(whole: Path, tmp_path: Path) -> None:
    store, machines = tmp_path / "store", 0
    copied = (f"store={store}", f"resume={store}")
    for stage, number in STAGES.items():
        machines += 1
        data = tmp_path / f"machine-{machines}"
        with paused(data, f"stage={stage}", *WORDS, *copied, at_write=number) as running:
            wait_for(lambda root=data / "smoke": settled(root, store))  # type: ignore[misc]
            running.send(signal.SIGKILL)
            assert running.wait() == -signal.SIGKILL
        assert f"{stage}/{PROGRESS[stage]}" in index(store)
        assert manifest(data / "smoke", stage)["state"] == "running"
        shutil.rmtree(data)
        machines += 1
        data = tmp_path / f"machine-{machines}"
        done = run(data, f"stage={stage}", *WORDS, *copied)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "fetching" in done.stdout
        assert equal(data / "smoke", store)
        shutil.rmtree(data)
    last = tmp_path / "last"
    done = run(last, "stage=all", *WORDS, f"resume={store}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("done before") == len(STAGES)
    for stage in STAGES:
        ours, theirs = manifest(last / "smoke", stage), manifest(whole, stage)
        assert ours["fingerprint"] == theirs["fingerprint"]
        assert ours["files"] == theirs["files"]  # the SHA-256 of what later stages read
