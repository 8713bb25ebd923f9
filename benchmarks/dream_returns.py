"""Returns of agents in the environment and in learned models, and how often they fail in each.

    python benchmarks/dream_returns.py data/RUN/controller/agent --models OTHER/rnn.safetensors

Episodes are generated in turn by the agent's own dynamics model, whose state its controller sees,
and, with that state kept, by each other member of it and by each model of ``--models``, which is
one of the same encoder. A model that a controller exploits predicts more for it than the others do.
Failures are terminations in 1,000 steps, over all steps and by steps since the start, which is a
recorded moment if the agent has any. Writes ``dream_returns.json``.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pipeline import BFLOAT16

import worldmodels
from worldmodels.agents.folder import Agent, read_agent
from worldmodels.agents.model_files import load_dynamics, load_first_latents
from worldmodels.agents.starts_file import STARTS, load_starts
from worldmodels.evolution.fitness import EpisodeSpec, EvalBatch
from worldmodels.files.atomic import write_json
from worldmodels.models.dynamics import DynamicsModel
from worldmodels.reporting.scores import summarise
from worldmodels.runs.provenance import provenance
from worldmodels.runs.tracking import say
from worldmodels.worlds.dream import DreamWorld
from worldmodels.worlds.members import SamplingRule
from worldmodels.worlds.rollout import Outcome

EDGES = (0, 10, 25, 50, 100, 200, 300, 1000)
"""Steps since the start between which failures are counted."""


def dreamed(
    agent: Agent,
    folder: Path,
    generating: Sequence[DynamicsModel],
    options: argparse.Namespace,
) -> Outcome:
    """The outcome of episodes that `generating` models make, or none: the agent's own."""
    own = agent.dynamics
    if (folder / STARTS).exists():
        starts: Any = load_starts(folder / STARTS, own.latent_size, own.action_size)
    else:
        starts = load_first_latents(folder / "rnn.safetensors")
    world = DreamWorld(
        own,
        starts,
        options.temperature,
        agent.config.features,
        dtype=torch.bfloat16 if BFLOAT16 else torch.float32,
        others=generating,
        rule=SamplingRule(sampled_termination=True, observer=bool(generating)),
    )
    episodes = tuple(range(options.episodes))
    spec = EpisodeSpec(options.episodes, options.steps, agent.config.controller)
    return EvalBatch(agent.parameters[None], episodes, spec)(world, lambda steps: None)


def failures(outcome: Outcome, first: int, last: int) -> float | None:
    """Terminations in 1,000 of the steps from `first` to `last` of an episode; None without any."""
    steps = np.clip(outcome.lengths - first, 0, last - first).sum()
    within = outcome.terminated & (outcome.lengths > first) & (outcome.lengths <= last)
    return float(1000 * within.sum() / steps) if steps else None


def figures(name: str, outcome: Outcome, steps: int) -> dict[str, Any]:
    """The entry of one model, which is said as well."""
    score = summarise(name, outcome.returns, range(len(outcome.returns)))
    rate = failures(outcome, 0, steps)
    edges = [edge for edge in EDGES if edge < steps] + [steps]
    rates = [failures(outcome, *pair) for pair in pairwise(edges)]
    low, high = score.interval
    shown = " ".join("-" if one is None else f"{one:.1f}" for one in rates)
    say(
        f"{name}: return {score.mean:.1f} ({low:.1f} to {high:.1f}); failures in 1,000 steps"
        f" {rate:.2f}, between steps {edges}: {shown}"
    )
    return {
        "generated_by": name,
        "return": {"mean": score.mean, "interval": list(score.interval)},
        "failures": rate,
        "edges": edges,
        "failures_between": rates,
    }


def measure(
    folder: Path, models: dict[str, DynamicsModel], options: argparse.Namespace
) -> dict[str, Any]:
    """One agent in the environment and in every model: its own, and `models` by name."""
    agent = read_agent(folder)
    played = worldmodels.evaluate(
        folder, options.episodes, options.first_seed, options.engine, max_steps=options.steps
    )
    low, high = played.interval
    say(f"{folder}: return {played.mean:.1f} ({low:.1f} to {high:.1f}) in the environment")
    entries = [figures("its own model", dreamed(agent, folder, (), options), options.steps)]
    others = {f"member {number}": one for number, one in enumerate(agent.others, start=2)}
    for name, model in (others | models).items():
        entries.append(figures(name, dreamed(agent, folder, [model], options), options.steps))
    earned = {"mean": played.mean, "interval": list(played.interval)}
    return {"agent": folder.name, "earned": earned, "models": entries}


def main() -> None:
    """Measure, print each figure, and write them as JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("agents", type=Path, nargs="+", help="folders of agents")
    parser.add_argument("--models", type=Path, nargs="*", default=[], help="files of models")
    parser.add_argument("--episodes", type=int, default=128, help="in each, and in the environment")
    parser.add_argument("--steps", type=int, default=1000, help="time limit")
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--engine", default="auto", help="of the environment")
    parser.add_argument("--first-seed", type=int, default=2000, help="in the environment")
    parser.add_argument("--out", type=Path, default=Path("data/dream_returns.json"))
    options = parser.parse_args()
    models = {str(path): load_dynamics(path) for path in options.models}
    found = [measure(folder, models, options) for folder in options.agents]
    settings = {name: getattr(options, name) for name in ("episodes", "steps", "temperature")}
    write_json(options.out, {**provenance(), **settings, "agents": found})
    say(f"wrote {options.out}")


if __name__ == "__main__":
    main()
