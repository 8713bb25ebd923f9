"""Calibration of the dynamics models of shipped agents, on new episodes: minutes on one core.

    python benchmarks/calibration.py

Each agent plays episodes on seeds that no training used, with and without noise; its encoder
encodes them, and its dynamics model predicts them as after ``stage=rnn``
(`worldmodels.reporting.calibration`). Writes ``calibration.json``.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from probe import PATH

from worldmodels import seeds
from worldmodels.agents.folder import read_agent
from worldmodels.config.environments import env_spec, find_env
from worldmodels.data.episodes import EpisodeSet
from worldmodels.data.latents import LatentSet
from worldmodels.files.atomic import write_json
from worldmodels.reporting.calibration import Calibration, calibrate
from worldmodels.reporting.verdict import in_words
from worldmodels.runs.provenance import provenance
from worldmodels.runs.tracking import say
from worldmodels.training.encode import encode_episodes
from worldmodels.worlds.collect import CollectShard, NoisyAgent
from worldmodels.worlds.specs import RealWorldSpec

SHARD = 8
"""Episodes that are played at once."""


class Case(NamedTuple):
    """An agent, and how it is disturbed; see `NoisyAgent`."""

    name: str
    env: str
    noise: float
    ez_greedy_epsilon: float


CASES = (
    Case("CarRacing", "carracing", 0.0, 0.0),
    Case("CarRacing, noise 0.05, bursts 0.03", "carracing", 0.05, 0.03),
    Case("Take Cover", "takecover", 0.0, 0.0),
)


def played(case: Case, agents: Path, drawn: Sequence[int], folder: Path) -> EpisodeSet:
    """Episodes of an agent on some seeds.

    Args:
        case: agent and noise.
        agents: folder of the agents.
        drawn: seeds of the episodes.
        folder: empty, for the episodes.
    """
    agent_folder = agents / case.env
    agent = read_agent(agent_folder)
    spec = env_spec(find_env(case.env, frame_skip=agent.config.frame_skip))
    paths = agent_folder / "vae.safetensors", agent_folder / "rnn.safetensors"
    world = RealWorldSpec(spec, 1, *paths, agent.config.features, compiles=True).build()
    policy = NoisyAgent(
        agent_folder, case.noise, case.ez_greedy_epsilon, agent.config.actions.bounds
    )
    for first in range(0, len(drawn), SHARD):
        path, part = folder / f"shard-{first:05d}.h5", tuple(drawn[first : first + SHARD])
        CollectShard(path, part, spec.max_steps, policy, {})(world, lambda steps: None)
    world.close()
    return EpisodeSet.open([folder])


def measure(case: Case, agents: Path, drawn: Sequence[int], folder: Path) -> Calibration:
    """The calibration of an agent's dynamics model on the episodes of some seeds; see `played`."""
    agent, episodes = read_agent(agents / case.env), played(case, agents, drawn, folder)
    say(f"{case.name}: mean return {episodes.returns().mean():.1f}")
    path, cpu = folder / "latents.h5", torch.device("cpu")
    encode_episodes(episodes, agent.encoder.to(torch.float32), path, {}, cpu, bfloat16=False)
    dynamics = agent.dynamics.to(torch.float32)
    return calibrate(LatentSet(path), np.arange(episodes.num_episodes), dynamics)


def main() -> None:
    """Measure each case, print and write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--agents", type=Path, default=Path("pretrained"))
    parser.add_argument("--episodes", type=int, default=12, help="of each case")
    parser.add_argument("--out", type=Path, default=Path("data/calibration.json"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    drawn = seeds.draw(seeds.Purpose.ROLLOUTS, 1, PATH, count=options.episodes)
    figures = []
    for case in CASES:
        with tempfile.TemporaryDirectory() as folder:
            found = measure(case, options.agents, drawn, Path(folder))
        say(f"{case.name}: {in_words(found)}")
        figures.append({**case._asdict(), **found.record()})
    write_json(options.out, {**provenance(), "figures": figures})
    say(f"wrote {options.out}; python docs/render.py {options.out} puts it into the documentation")


if __name__ == "__main__":
    main()
