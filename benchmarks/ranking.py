"""How well the learned model of a round ranks controllers near that which its search began with.

    python benchmarks/ranking.py data/RUN 12

The controllers are that of the round before and others at random distances of ``--sigma`` in each
direction of the searched subspace; all play the same episodes in the environment, and the same
number in the learned model of round 12. Objectives of episodes in the learned model, by their
length: the predicted rewards of the steps, the share of episodes that have not terminated, the
value after the last step (``value_horizon``), and what the search adds up: rewards and value, less
the penalty of a termination. A row has Spearman's rank correlation of one of them with the mean
return in the environment, with a bootstrap interval over controllers; the last line that of two
halves of the episodes in the environment. Writes ``ranking.json``.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pipeline import BFLOAT16
from scipy import stats

from worldmodels import seeds
from worldmodels.agents.folder import read_agent
from worldmodels.agents.starts_file import STARTS
from worldmodels.agents.value_file import VALUE, load_values
from worldmodels.envs.engines import EnvSpec
from worldmodels.evolution.fitness import EpisodeSpec, fitness
from worldmodels.evolution.pca import PCASubspace
from worldmodels.files.atomic import write_json
from worldmodels.models.controller import ControllerSpec
from worldmodels.runs.provenance import provenance
from worldmodels.runs.tracking import say
from worldmodels.workers.jobs import READ, Heartbeat
from worldmodels.workers.local import LocalPool
from worldmodels.worlds.dream import DreamWorld
from worldmodels.worlds.members import SamplingRule
from worldmodels.worlds.rollout import PopulationPolicy
from worldmodels.worlds.specs import DreamWorldSpec, RealWorldSpec

HORIZONS = (40, 80, 160, 300, 400)
OBJECTIVES = ("rewards", "not terminated", "value", "rewards, value and penalty")
RESAMPLES = 2000


@dataclass(frozen=True)
class Predicted:
    """A job for a worker: the objectives of some controllers in the learned model.

    Args:
        candidates: (P, parameters) float32.
        seeds: of the episodes of each.
        controller: layers of the controllers.
        values: file of the value functions.
    """

    candidates: np.ndarray
    seeds: tuple[int, ...]
    controller: ControllerSpec
    values: Path = field(metadata=READ)

    @torch.inference_mode()
    def __call__(self, tool: DreamWorld, heartbeat: Heartbeat) -> np.ndarray:
        """Means over episodes, (objectives, horizons, P)."""
        count, size = len(self.candidates), tool.feature_size
        values = load_values(self.values, size)
        policy = PopulationPolicy(
            self.candidates, len(self.seeds), size, self.controller, tool.device
        )
        features = tool.reset(list(self.seeds) * count)
        total, ended, found = np.zeros(len(features)), np.zeros(len(features), bool), []
        for time in range(1, HORIZONS[-1] + 1):
            step = tool.step(policy.act(features))
            features = step.features
            total += np.where(ended, 0, step.reward)
            ended |= step.terminated
            heartbeat(len(features))
            if time in HORIZONS:
                value = np.where(ended, 0, values(features.float()).mean(0).numpy())
                searched = total + value - values.penalty * ended
                rows = np.stack([total, ~ended, value, searched])
                found.append(rows.reshape(len(OBJECTIVES), count, -1).mean(axis=2))
        return np.stack(found, axis=1)


def correlation(predicted: np.ndarray, returns: np.ndarray) -> dict[str, Any]:
    """Spearman's rank correlation over controllers, with a 95 % bootstrap interval."""

    def of(rows: np.ndarray) -> float:
        return float(stats.spearmanr(predicted[rows], returns[rows]).statistic)

    everyone, rng = np.arange(len(returns)), np.random.default_rng(0)
    drawn = [of(rng.choice(everyone, len(everyone))) for _ in range(RESAMPLES)]
    low, high = np.nanquantile(drawn, (0.025, 0.975))
    return {"correlation": of(everyone), "interval": [float(low), float(high)]}


def around(options: argparse.Namespace, agent: Path, before: Path) -> np.ndarray:
    """The controller of `before` and others near it, (P, parameters) float32."""
    spec = read_agent(agent).config.controller
    subspace = PCASubspace.load(agent / "pca_subspace.safetensors", spec)
    centre = subspace.coordinates(read_agent(before).parameters[None])[0]
    rng, count = np.random.default_rng(options.round), options.controllers - 1
    noise = options.sigma * rng.standard_normal((count, len(centre)))
    return subspace.controllers(np.vstack([centre, centre + noise])).astype(np.float32)


def earned(options: argparse.Namespace, agent: Path, candidates: np.ndarray) -> np.ndarray:
    """Returns in the environment, (P, episodes)."""
    config = read_agent(agent).config
    world = RealWorldSpec(
        env=EnvSpec(config.env_id),
        encoder=agent / "vae.safetensors",
        dynamics=agent / "rnn.safetensors",
        features=config.features,
        bfloat16=BFLOAT16,
    )
    drawn = seeds.draw(seeds.Purpose.SELECTION, 0, options.round, count=options.episodes)
    with LocalPool(world, options.processes, 600.0) as pool:
        spec = EpisodeSpec(options.episodes, 1000, config.controller)
        return fitness(pool, candidates, drawn, spec).returns


def predicted(options: argparse.Namespace, agent: Path, candidates: np.ndarray) -> np.ndarray:
    """Objectives in the learned model, (objectives, horizons, P)."""
    trained = read_agent(agent)
    world = DreamWorldSpec(
        agent / "rnn.safetensors",
        1.0,
        trained.config.features,
        bfloat16=BFLOAT16,
        rule=SamplingRule(sampled_termination=True, observer=bool(trained.others)),
        starts=agent / STARTS,
    )
    episodes = tuple(range(options.dreams))
    jobs = [
        Predicted(row[None], episodes, trained.config.controller, agent / VALUE)
        for row in candidates
    ]
    with LocalPool(world, options.processes, 600.0) as pool:
        return np.concatenate(pool.map(jobs), axis=2)


def main() -> None:
    """Play, predict, correlate."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path, help="of stage=iterate")
    parser.add_argument("round", type=int)
    parser.add_argument("--controllers", type=int, default=40)
    parser.add_argument("--sigma", type=float, default=0.06)
    parser.add_argument("--episodes", type=int, default=64, help="of each, in the environment")
    parser.add_argument("--dreams", type=int, default=384, help="of each, in the learned model")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    agent, before = (
        options.run / f"round-{number}" / "controller" / "agent"
        for number in (options.round, options.round - 1)
    )
    candidates = around(options, agent, before)
    returns = earned(options, agent, candidates)
    mean, objectives = returns.mean(axis=1), predicted(options, agent, candidates)
    rows = [
        {"steps": steps, "objective": name, **correlation(objectives[o, h], mean)}
        for h, steps in enumerate(HORIZONS)
        for o, name in enumerate(OBJECTIVES)
    ]
    for row in rows:
        say(f"{row['steps']} steps, {row['objective']}: {row['correlation']:.2f}")
    halves = stats.spearmanr(returns[:, ::2].mean(axis=1), returns[:, 1::2].mean(axis=1)).statistic
    say(f"two halves of the episodes in the environment: {halves:.2f}")
    figures = {
        **{key: value for key, value in vars(options).items() if key not in ("run", "processes")},
        "rows": rows,
        "halves": float(halves),
        "returns": {"mean": float(mean.mean()), "std": float(mean.std(ddof=1))},
    }
    path = options.run / "ranking.json"
    write_json(path, {**provenance(), "figures": figures})
    say(f"wrote {path}")


if __name__ == "__main__":
    main()
