"""Brief trainings of baselines."""

from pathlib import Path
from typing import Any

from command import ALONE, run

from worldmodels.files.atomic import read_json

SMALL = "policy_kwargs: {features_extractor_kwargs: {features_dim: 8}, net_arch: [8]}"
PPO = f"baseline.options={{{SMALL}, n_steps: 16, batch_size: 16, n_epochs: 1}}"
BUFFER = "buffer_size: 64, learning_starts: 16, batch_size: 8, gradient_steps: 1"
BRIEF = (
    *("stage=baseline", "run=it", "env.max_steps=12", "baseline.num_envs=2", ALONE),
    *("baseline.total_steps=64", "baseline.checkpoint_steps=32", "baseline.eval_episodes=2"),
)
DISCRETE = "env.kwargs={continuous: false}"


def trained(folder: Path, *words: str, threads: int = 1) -> dict[str, Any]:
    """The manifest of a baseline that the program trains, where OpenMP may use so many threads."""
    done = run(folder, *BRIEF, *words, variables={"OMP_NUM_THREADS": str(threads)})
    assert done.returncode == 0, done.stdout + done.stderr
    return dict(read_json(folder / "it/baseline/manifest.json"))
