"""Speed of the dynamics models at equal hidden size, on one core: eight minutes.

    taskset -c 0 python benchmarks/dynamics.py

Training is that of the stage ``rnn``, on random latents. The dream is a population of linear
controllers in the learned model, with as many episodes in one batch as on a CPU: of one model, and
of an ensemble with a pessimistic reward. The models take turns; a figure is the median over the
turns. Writes ``dynamics.json``.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning_fabric import Fabric
from pipeline import BFLOAT16, SPEC

from worldmodels.agents.registry import DYNAMICS
from worldmodels.data.latents import EncodedEpisode, FirstLatents, LatentSet, write_latents
from worldmodels.files.atomic import write_json
from worldmodels.models.features import FeatureSpec
from worldmodels.models.heads import MixtureDynamics
from worldmodels.planning.timing import fit_rate
from worldmodels.runs.provenance import provenance
from worldmodels.runs.tracking import say
from worldmodels.stages.controller import MAX_DREAM_ENVS
from worldmodels.training import cpu
from worldmodels.training.dynamics import DynamicsTask
from worldmodels.training.fit import FitOptions
from worldmodels.worlds.dream import DreamWorld
from worldmodels.worlds.members import SamplingRule
from worldmodels.worlds.rollout import PopulationPolicy, rollout

LATENT, ACTION, HIDDEN = 32, 3, 256
EPISODES, STEPS = 64, 200
ROWS, WINDOW = 16, 100
MEMBERS = 5
"""Of the ensemble."""
MODELS: dict[str, dict[str, int]] = {
    "mdn_rnn": {},
    "gru": {},
    "transformer": {},
    "transformer, context 16": {"context": 16},
}
"""Name in the table -> options of the class that its first word registers."""


def built(name: str) -> MixtureDynamics:
    """The model of a row of the table, with new weights, in which no episode terminates."""
    torch.manual_seed(0)
    kind: Callable[..., Any] = DYNAMICS[name.split(",")[0]]
    model: MixtureDynamics = kind(LATENT, ACTION, hidden_size=HIDDEN, **MODELS[name])
    with torch.no_grad():
        model.head.bias[-1] = -30.0
    return model


def record(path: Path) -> LatentSet:
    """Random latents of `EPISODES` episodes of `STEPS` steps."""
    rng = np.random.default_rng(0)
    episodes = (
        EncodedEpisode(
            mean=rng.standard_normal((STEPS + 1, LATENT), np.float32),
            logvar=np.full((STEPS + 1, LATENT), -1.0, np.float32),
            actions=rng.standard_normal((STEPS, ACTION), np.float32),
            rewards=np.zeros(STEPS, np.float32),
            terminated=np.zeros(STEPS, bool),
            seed=seed,
        )
        for seed in range(EPISODES)
    )
    write_latents(path, episodes, {})
    return LatentSet(path)


def training(model: MixtureDynamics, latents: LatentSet, folder: Path, seconds: float) -> float:
    """Transitions per second."""
    precision = "bf16-mixed" if BFLOAT16 else "32-true"
    fabric = Fabric(accelerator="cpu", devices=1, precision=precision)  # type: ignore[arg-type]  # a literal
    split = np.arange(EPISODES - 4), np.arange(EPISODES - 4, EPISODES)
    task = DynamicsTask(model, latents, split, ROWS, WINDOW, 1, fabric)
    options = FitOptions(1, 1e-3, 1e-3, 1.0, 1, 30.0, 20)
    return fit_rate(task, folder, options, fabric, seconds).training


def dream(model: MixtureDynamics, seconds: float, *others: MixtureDynamics) -> float:
    """Steps per second of episodes of `STEPS` steps, in which all members are computed."""
    dtype = torch.bfloat16 if BFLOAT16 else torch.float32
    first = FirstLatents(*np.zeros((2, 1, LATENT), np.float32))
    rule = SamplingRule(each_step=True, pessimism=1.0)
    world = DreamWorld(model, first, 1.0, FeatureSpec(), dtype=dtype, others=others, rule=rule)
    size = (1, SPEC.size(world.feature_size))
    controller = np.random.default_rng(0).normal(0, 0.1, size).astype(np.float32)
    steps, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        policy = PopulationPolicy(
            controller, MAX_DREAM_ENVS, world.feature_size, SPEC, world.device
        )
        steps += int(rollout(world, policy, range(MAX_DREAM_ENVS), STEPS).lengths.sum())
    return steps / (time.perf_counter() - began)


def main() -> None:
    """Measure, print each figure, and write them as JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=8.0, help="length of a measurement")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each model")
    parser.add_argument("--out", type=Path, default=Path("data/dynamics.json"))
    options = parser.parse_args()
    cpu.tune(1)
    torch.set_num_threads(1)
    turns: dict[str, dict[str, list[float]]] = {
        name: {"training": [], "dream": [], "ensemble": []} for name in MODELS
    }
    with tempfile.TemporaryDirectory() as folder:
        latents = record(Path(folder) / "latents.h5")
        for number in range(options.rounds):
            for name, rates in turns.items():
                place = Path(folder) / f"{name}-{number}"
                place.mkdir()
                rates["training"].append(training(built(name), latents, place, options.seconds))
                rates["dream"].append(dream(built(name), options.seconds))
                members = (built(name) for _ in range(MEMBERS))
                rates["ensemble"].append(dream(next(members), options.seconds, *members))
                say(f"{name}: " + ", ".join(f"{k} {v[-1]:,.0f}/s" for k, v in rates.items()))
    figures = [
        {
            "model": name,
            "parameters": sum(part.numel() for part in built(name).parameters()),
            **{what: statistics.median(rates) for what, rates in turns[name].items()},
            "turns": turns[name],
        }
        for name in MODELS
    ]
    settings = {"hidden_size": HIDDEN, "bfloat16": BFLOAT16, "members": MEMBERS}
    write_json(options.out, {**provenance(), **settings, "figures": figures})
    say(f"wrote {options.out}; python docs/render.py {options.out} puts it into the documentation")


if __name__ == "__main__":
    main()
