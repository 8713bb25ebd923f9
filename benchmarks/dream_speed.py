"""What a step in the learned model costs beside its LSTM cell and head alone, on one core.

    OMP_NUM_THREADS=1 taskset -c 0 python benchmarks/dream_speed.py

In the dynamics models of the shipped agents, with as many episodes in one batch as the search has
on a CPU: a population of controllers near the shipped one, of which no episode terminates. Cell and
head alone, the loop, and each part of it on the same arrays take turns, and processor time is
measured, so that other load of the machine changes a ratio little; it is the median of the ratios
of the turns. ``plain`` is noise and sampling by tensor operations, as on a GPU; the loop with five
members has that many copies of the dynamics model, of which one is drawn in each step. Writes
``dream_speed.json``.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from copy import deepcopy
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from pipeline import BFLOAT16

from worldmodels.agents.folder import read_agent
from worldmodels.agents.model_files import load_first_latents
from worldmodels.files.atomic import write_json
from worldmodels.models.heads import MixtureDynamics
from worldmodels.runs.provenance import provenance
from worldmodels.runs.tracking import say
from worldmodels.stages.controller import MAX_DREAM_ENVS
from worldmodels.worlds import members
from worldmodels.worlds.dream import DreamWorld
from worldmodels.worlds.noise import EpisodeNoise, tensor_normal, tensor_uniform
from worldmodels.worlds.rollout import PopulationPolicy, rollout
from worldmodels.worlds.sampling import sample

AGENTS = Path(__file__).resolve().parents[1] / "pretrained"
CANDIDATES, EPISODES = 16, MAX_DREAM_ENVS // 16
SEEDS = list(range(EPISODES)) * CANDIDATES
SIGMA = 0.01
"""Standard deviation of the candidates' parameters."""
STEPS = 100
"""Of a measurement, at least."""
WHOLE, PLAIN, ALONE = "loop", "loop, plain", "cell and head"
MEMBERS = 5
SEVERAL = f"loop, {MEMBERS} members"
Loops = dict[str, Callable[[int], object]]
"""Name -> a function that takes so many steps."""


def repeated(step: Callable[[], object]) -> Callable[[int], object]:
    """A function that takes `step` so many times."""

    @torch.inference_mode()
    def run(steps: int) -> None:
        for _ in range(steps):
            step()

    return run


def plainly(run: Callable[[int], object]) -> Callable[[int], object]:
    """`run` with noise and sampling by tensor operations."""
    plain = {"uniform": tensor_uniform, "normal": tensor_normal}

    def replaced(draw: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        return lambda noise, step, size: draw(noise.keys, step, size)

    def run_plainly(steps: int) -> None:
        with ExitStack() as stack:
            for name, draw in plain.items():
                stack.enter_context(mock.patch.object(EpisodeNoise, name, replaced(draw)))
            stack.enter_context(
                mock.patch.object(members, "sample", lambda latent, *given: latent.sample(*given))
            )
            run(steps)

    return run_plainly


def loops(name: str) -> Loops:
    """The loop, cell and head alone, and the parts of the loop, for one shipped agent."""
    agent = read_agent(AGENTS / name)
    dynamics = agent.dynamics
    assert isinstance(dynamics, MixtureDynamics)
    with torch.no_grad():
        dynamics.head.bias[-1] = -30.0  # no episode terminates
    first = load_first_latents(AGENTS / name / "rnn.safetensors")
    dtype = torch.bfloat16 if BFLOAT16 else torch.float32
    features = agent.config.features
    world = DreamWorld(dynamics, first, 1.0, features, dtype=dtype)
    others = [deepcopy(dynamics) for _ in range(MEMBERS - 1)]
    ensemble = DreamWorld(dynamics, first, 1.0, features, dtype=dtype, others=others)
    noise = np.random.default_rng(0).normal(0, SIGMA, (CANDIDATES, len(agent.parameters)))
    candidates = (agent.parameters + noise).astype(np.float32)

    def policy() -> PopulationPolicy:
        spec = agent.config.controller
        return PopulationPolicy(candidates, EPISODES, world.feature_size, spec, world.device)

    steps = torch.full((len(SEEDS),), 7)
    drawn = EpisodeNoise(SEEDS, 0, world.device)
    with torch.inference_mode():
        controllers, seen = policy(), world.reset(SEEDS)
        z, actions, state = world.latents, controllers.act(seen), dynamics.initial_state(len(SEEDS))
        state = dynamics.advance(z, actions, state)
        latent = dynamics.predict(state).latent
        uniform, normal = drawn.uniform(steps, z.shape[1]), drawn.normal(steps, z.shape[1])
    size = z.shape[1]

    def loop(steps: int) -> None:
        rollout(world, policy(), SEEDS, steps)

    return {
        WHOLE: loop,
        PLAIN: plainly(loop),
        SEVERAL: lambda steps: rollout(ensemble, policy(), SEEDS, steps),
        ALONE: repeated(lambda: dynamics.predict(dynamics.advance(z, actions, state))),
        "noise": repeated(lambda: (drawn.uniform(steps, size), drawn.normal(steps, size))),
        "noise, plain": repeated(
            lambda: (
                tensor_uniform(drawn.keys, steps, size),
                tensor_normal(drawn.keys, steps, size),
            )
        ),
        "sampling": repeated(lambda: sample(latent, uniform, normal, 1.0)),
        "sampling, plain": repeated(lambda: latent.sample(uniform, normal, 1.0)),
        "features": repeated(lambda: features.features(z, actions, state, dynamics)),
        "controller": repeated(lambda: controllers.act(seen)),
    }


def seconds_a_step(run: Callable[[int], object], seconds: float) -> float:
    """The processor time of one step, over at least `seconds` and `STEPS`."""
    steps, began = 0, time.thread_time()
    while steps == 0 or time.thread_time() - began < seconds:
        run(STEPS)
        steps += STEPS
    return (time.thread_time() - began) / steps


def measure(name: str, rounds: int, seconds: float) -> dict[str, Any]:
    """Medians over the turns for one agent."""
    runs = loops(name)
    for run in runs.values():
        run(2)  # compiled, if that was not done on this machine
    turns = [
        {part: seconds_a_step(run, seconds) for part, run in runs.items()} for _ in range(rounds)
    ]
    ratios = {
        loop: [turn[loop] / turn[ALONE] for turn in turns] for loop in (WHOLE, PLAIN, SEVERAL)
    }
    return {
        "agent": name,
        "ratio": {loop: statistics.median(found) for loop, found in ratios.items()},
        "turns": ratios,
        "steps_per_s": len(SEEDS) / statistics.median(turn[WHOLE] for turn in turns),
        "microseconds": {
            part: 1e6 * statistics.median(turn[part] for turn in turns) for part in runs
        },
    }


def main() -> None:
    """Measure, print each figure, and write them as JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=0.5, help="of a measurement")
    parser.add_argument("--rounds", type=int, default=7, help="turns of all parts")
    parser.add_argument("--out", type=Path, default=Path("data/dream_speed.json"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    figures = []
    for name in ("carracing", "takecover"):
        figures.append(measure(name, options.rounds, options.seconds))
        parts = figures[-1]["microseconds"]
        say(f"{name}: " + ", ".join(f"{part} {us:,.0f} µs" for part, us in parts.items()))
        ratio = figures[-1]["ratio"]
        say(
            f"{name}: the loop costs {ratio[WHOLE]:.2f} times cell and head alone,"
            f" {ratio[PLAIN]:.2f} times by tensor operations;"
            f" {figures[-1]['steps_per_s']:,.0f} steps/s, with {MEMBERS} members"
            f" {ratio[WHOLE] / ratio[SEVERAL]:.0%} of that"
        )
    settings = {"num_envs": len(SEEDS), "bfloat16": BFLOAT16}
    write_json(options.out, {**provenance(), **settings, "figures": figures})
    say(f"wrote {options.out}")


if __name__ == "__main__":
    main()
