"""What a linear map reads of the car's motion from z and h: a minute on one core.

    python benchmarks/probe.py pretrained/carracing

The agent drives in the native simulator, with some noise, so that the car slides and leaves the
road at times. Ridge regressions from the latent z_t, from the hidden state h that the controller
gets with it, and from both, to the simulator's speed, lateral velocity and yaw rate at frame t,
fitted on three quarters of the episodes and scored on the others. Writes ``probe.json``.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import cast

import numpy as np
import torch
from gymnasium.vector import VectorEnv
from torch import Tensor

from worldmodels import seeds
from worldmodels.agents.folder import read_agent
from worldmodels.envs.carracing.state import ANGLE, HULL, VX, VY, W
from worldmodels.envs.carracing.vector import CarRacingVectorEnv
from worldmodels.envs.engines import EnvSpec, make_vector_env, prepare
from worldmodels.files.atomic import write_json
from worldmodels.models.dynamics import DynamicsModel
from worldmodels.runs.provenance import provenance
from worldmodels.runs.tracking import say
from worldmodels.worlds.collect import NoisyAgent
from worldmodels.worlds.real import Perception, RealWorld
from worldmodels.worlds.rollout import rollout
from worldmodels.worlds.world import Step, World

NOISE, EZ_GREEDY_EPSILON = 0.05, 0.03
STEPS = 1000
PATH = 1000
"""Of the seeds: far beyond the number of rounds, which it is in training."""
RIDGE = 1.0
"""Of the penalty, for features and targets of unit variance; against thousands of frames it only
keeps inactive dimensions of z from having large weights."""
TARGETS = {"speed": "m/s", "lateral slip": "m/s", "yaw rate": "rad/s"}


def motion(body: np.ndarray) -> np.ndarray:
    """Speed, velocity to the right of the car, and yaw rate: (N, 3).

    Args:
        body: of the simulator, (N, 5, 11); see `worldmodels.envs.carracing.state`.
    """
    hull = body[:, HULL].astype(np.float64)
    right = np.cos(hull[:, ANGLE]), np.sin(hull[:, ANGLE])
    slip = hull[:, VX] * right[0] + hull[:, VY] * right[1]
    return np.stack([np.hypot(hull[:, VX], hull[:, VY]), slip, hull[:, W]], axis=1)


@dataclass(frozen=True)
class Score:
    """A regression on held-out episodes: share of the variance, and error in the target's unit."""

    r2: float
    rmse: float


def ridge(
    inputs: np.ndarray, targets: np.ndarray, held_out: np.ndarray, penalty: float = RIDGE
) -> list[Score]:
    """Scores of a ridge regression, one for each target.

    Args:
        inputs: (rows, features).
        targets: (rows, targets).
        held_out: (rows,) bool, the rows that are scored and not fitted.
        penalty: on the squared weights of standardised features.
    """
    fitted = inputs[~held_out]
    mean, std = fitted.mean(axis=0), fitted.std(axis=0)
    x = (inputs - mean) / np.where(std > 0, std, 1.0)
    offset = targets[~held_out].mean(axis=0)
    design = x[~held_out]
    gram = design.T @ design + penalty * np.eye(design.shape[1])
    weights = np.linalg.solve(gram, design.T @ (targets[~held_out] - offset))
    errors = targets[held_out] - (x[held_out] @ weights + offset)
    mse = np.square(errors).mean(axis=0)
    variance = targets[held_out].var(axis=0)
    pairs = zip(mse.tolist(), variance.tolist(), strict=True)
    return [Score(1 - error / spread, error**0.5) for error, spread in pairs]


class Frames:
    """A recorder of z, h and motion at each frame but the first.

    Args:
        dynamics: whose state has h.
        envs: the environment of the world, as the last element.
    """

    def __init__(self, dynamics: DynamicsModel, envs: list[CarRacingVectorEnv]) -> None:
        self._dynamics, self._envs = dynamics, envs
        self.rows: list[tuple[np.ndarray, ...]] = []

    def begin(self, world: World) -> None:
        """Nothing: the state of the first frame is zero."""

    def record(self, indices: np.ndarray, actions: Tensor, step: Step, world: World) -> None:
        """Keep episode, z, h and motion of the environments that run."""
        assert isinstance(world, RealWorld)
        hidden = self._dynamics.features(world.state, ("h",))
        body = self._envs[-1].get_state(indices)["envs.body"]
        self.rows.append((indices, world.latents.numpy(), hidden.numpy(), motion(body)))


def drive(folder: Path, count: int) -> tuple[np.ndarray, ...]:
    """Episode, z, h and motion of every frame of `count` episodes of the agent in `folder`."""
    agent = read_agent(folder)
    skip, observation = agent.config.frame_skip, agent.config.observation
    steps = -(-STEPS // skip)
    spec = EnvSpec(engine="native", max_steps=steps, frame_skip=skip, **asdict(observation))
    prepare(spec)
    envs: list[CarRacingVectorEnv] = []

    def make(num_envs: int) -> VectorEnv:
        env = make_vector_env(spec, num_envs)
        envs.append(cast(CarRacingVectorEnv, env.unwrapped))
        return env

    dynamics = agent.dynamics.to(torch.float32).eval()
    world = RealWorld(make, Perception(agent.encoder, dynamics, agent.config.features))
    frames = Frames(dynamics, envs)
    drawn = tuple(seeds.draw(seeds.Purpose.ROLLOUTS, 1, PATH, count=count))
    noisy = NoisyAgent(folder, NOISE, EZ_GREEDY_EPSILON, agent.config.actions.bounds)
    outcome = rollout(world, noisy.policy(world, drawn), drawn, steps, frames)
    world.close()
    say(f"{count} episodes, mean return {outcome.returns.mean():.1f}")
    return tuple(np.concatenate(column) for column in zip(*frames.rows, strict=True))


def main() -> None:
    """Drive, fit, print and write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("agent", type=Path, nargs="?", default=Path("pretrained/carracing"))
    parser.add_argument("--episodes", type=int, default=32, help="at least 4")
    parser.add_argument("--out", type=Path, default=Path("data/probe.json"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    episode, z, h, targets = drive(options.agent, options.episodes)
    held_out = episode % 4 == 3
    figures = []
    for name, inputs in (("z", z), ("h", h), ("z and h", np.concatenate([z, h], axis=1))):
        scores = ridge(inputs.astype(np.float64), targets, held_out)
        named = dict(zip(TARGETS, map(asdict, scores), strict=True))
        figures.append({"inputs": name, "features": inputs.shape[1], "scores": named})
        say(f"{name}: " + ", ".join(f"{k} R2 {v['r2']:.3f}" for k, v in named.items()))
    record = {
        "agent": options.agent.name,
        "episodes": options.episodes,
        "frames": len(episode),
        "units": TARGETS,
        "std": dict(zip(TARGETS, targets[held_out].std(axis=0).tolist(), strict=True)),
        "figures": figures,
    }
    write_json(options.out, {**provenance(), **record})
    say(f"wrote {options.out}; python docs/render.py {options.out} puts it into the documentation")


if __name__ == "__main__":
    main()
