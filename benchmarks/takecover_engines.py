"""EnvPool's Take Cover compared with ViZDoom's: agreement and speed.

Episodes without any action, each simulator on one thread: lengths, returns, mean colour of the
first frames, and steps a second. Writes
``data/takecover_engines.json``; a minute.

    python benchmarks/takecover_engines.py --episodes 100
"""

from __future__ import annotations

import argparse
import time
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import envpool
import numpy as np
from scipy import stats

from worldmodels.envs.engines import EnvSpec, make_vector_env
from worldmodels.files.atomic import write_json
from worldmodels.runs.provenance import provenance
from worldmodels.runs.tracking import say

ID = "vizdoom.gymnasium_wrapper:VizdoomTakeCover-v1"
LIMIT, ROWS, COLUMNS = 2100, 240, 320
NUM_ENVS = 16


class Played(NamedTuple):
    """Some episodes."""

    lengths: np.ndarray  # (episodes,)
    returns: np.ndarray  # (episodes,)
    colour: np.ndarray  # (episodes, 3): mean of the first frames
    rate: np.ndarray  # (1,): steps a second


def vizdoom(seeds: list[int]) -> Played:
    """ViZDoom's environment as the project uses it, with whole pictures."""
    spec = EnvSpec(
        id=ID,
        engine="gymnasium",
        max_steps=LIMIT,
        crop_rows=None,
        size=64,
        action_bins=(2, 0, 1),
        kwargs={"doom_config_path": "/dev/null"},
    )
    with closing(make_vector_env(spec, len(seeds))) as envs:
        return played(envs, seeds, np.zeros((len(seeds), 1), np.float32))


def pool(seeds: list[int]) -> Played:
    """EnvPool's, one step a tic and one frame an observation, as near as its options go."""
    envs = envpool.make(
        "TakeCover-v1",
        env_type="gymnasium",
        num_envs=len(seeds),
        num_threads=1,
        seed=seeds,
        frame_skip=1,
        stack_num=1,
        img_height=64,
        img_width=64,
        max_episode_steps=LIMIT,
    )
    return played(envs, None, np.zeros((len(seeds), 2)))


def played(envs: Any, seeds: list[int] | None, actions: np.ndarray) -> Played:
    """Run the environments' episodes to their ends."""
    frames, _ = envs.reset() if seeds is None else envs.reset(seed=seeds)
    lengths, returns = np.zeros(len(actions), int), np.zeros(len(actions))
    running = np.ones(len(actions), bool)
    began, steps = time.perf_counter(), 0
    while running.any():
        _, rewards, terminated, truncated, _ = envs.step(actions)
        lengths[running] += 1
        returns[running] += rewards[running]
        steps += len(actions) if seeds is None else int(running.sum())  # EnvPool begins anew
        running &= ~(terminated | truncated)
    rate = steps / (time.perf_counter() - began)
    frames = frames if frames.shape[-1] == 3 else frames.transpose(0, 2, 3, 1)
    return Played(lengths, returns, frames.mean(axis=(1, 2)), np.array([rate]))


def main() -> None:
    """Run both, compare, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, default=96)
    parser.add_argument("--data", type=Path, default=Path("data"))
    options = parser.parse_args()
    parts = [list(range(at, at + NUM_ENVS)) for at in range(0, options.episodes, NUM_ENVS)]
    results = {
        name: Played(*map(np.concatenate, zip(*(play(part) for part in parts), strict=True)))
        for name, play in (("vizdoom", vizdoom), ("envpool", pool))
    }
    ours, theirs = results["vizdoom"].lengths, results["envpool"].lengths
    record: dict[str, Any] = {
        **provenance(),
        "episodes": len(ours),
        "same_length": int((ours == theirs).sum()),
        "ks_pvalue": float(stats.ks_2samp(ours, theirs).pvalue),
    }
    for name, result in results.items():
        record[name] = {
            "mean_length": float(result.lengths.mean()),
            "std_length": float(result.lengths.std(ddof=1)),
            "mean_return": float(result.returns.mean()),
            "steps/s": float(result.rate.mean()),
            "mean_colour": result.colour.mean(axis=0).tolist(),
        }
    write_json(options.data / "takecover_engines.json", record)
    for name in results:
        say(f"{name}: {record[name]}")
    say(f"equal lengths on equal seeds: {record['same_length']}; KS p = {record['ks_pvalue']:.2f}")


if __name__ == "__main__":
    main()
