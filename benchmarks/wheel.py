"""Rewards with the steering held at its limit, predicted by MDN-RNNs and simulated: a minute.

A car that leaves the road earns nothing. An MDN-RNN whose data has corrected driving only may
predict otherwise; a controller trained in it then exploits this.

    python benchmarks/wheel.py data/dreamt-rounds-steady/round-1 data/dreamt-rounds/round-1

The episodes are those of the first run; all MDN-RNNs must be trained on latents of the same VAE.
The recorded actions of each episode are repeated for 90 steps. Then follow 60 steps in the
simulator and in each MDN-RNN: with the recorded actions, or with full steering to either side and
30 % gas. Writes ``wheel.json``.
"""

from __future__ import annotations

import argparse
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from worldmodels.agents.model_files import load_dynamics
from worldmodels.data.latents import LatentSet
from worldmodels.envs.engines import EnvSpec, make_vector_env, prepare
from worldmodels.files.atomic import write_json
from worldmodels.models.dynamics import DynamicsModel
from worldmodels.runs.provenance import provenance
from worldmodels.runs.tracking import say

EPISODES, DRIVEN, HELD = 64, 90, 60
LAST = 30
"""Steps whose rewards count; in earlier ones the car is still on the road."""
WHEELS = {"as driven": None, "hard left": (-1.0, 0.3, 0.0), "hard right": (1.0, 0.3, 0.0)}


def held(actions: Tensor, wheel: tuple[float, ...] | None) -> Tensor:
    """`actions` (episodes, steps, 3), from step `DRIVEN` on with fixed steering."""
    if wheel is None:
        return actions
    over = torch.tensor(wheel).expand(len(actions), HELD, 3)
    return torch.cat([actions[:, :DRIVEN], over], dim=1)


@torch.inference_mode()
def predicted_reward(dynamics: DynamicsModel, latents: Tensor, actions: Tensor) -> float:
    """Predicted mean reward of the `LAST` steps, sampled at temperature 1 from step `DRIVEN` on.

    Args:
        dynamics: the MDN-RNN.
        latents: recorded means (episodes, DRIVEN + 1, Z).
        actions: (episodes, DRIVEN + HELD, 3).
    """
    torch.manual_seed(0)
    state = dynamics.initial_state(len(latents))
    for time in range(DRIVEN):
        state = dynamics.advance(latents[:, time], actions[:, time], state)
    now, rewards = latents[:, DRIVEN], []
    for time in range(DRIVEN, DRIVEN + HELD):
        state = dynamics.advance(now, actions[:, time], state)
        prediction = dynamics.predict(state)
        rewards.append(prediction.reward)
        now = prediction.latent.sample(torch.rand_like(now), torch.randn_like(now), 1.0)
    return float(torch.stack(rewards[-LAST:]).mean())


def simulated_reward(seeds: np.ndarray, actions: Tensor) -> float:
    """Mean reward of the `LAST` steps in the simulator, for the same actions."""
    spec = EnvSpec(engine="native")
    prepare(spec)
    with closing(make_vector_env(spec, len(seeds))) as envs:
        envs.reset(seed=seeds.tolist())
        rewards = [envs.step(actions[:, time].numpy())[1] for time in range(actions.shape[1])]
    return float(np.stack(rewards[-LAST:]).mean())


def main() -> None:
    """Compare the MDN-RNNs of some runs with the simulator."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--data", type=Path, default=Path("data"))
    options = parser.parse_args()
    recorded = LatentSet(options.runs[0] / "rnn" / "latents.h5")
    chosen = np.flatnonzero(recorded.lengths >= DRIVEN + HELD)[:EPISODES]
    episodes = [recorded.read(int(index), 0, DRIVEN + HELD) for index in chosen]
    latents = torch.from_numpy(np.stack([episode.mean for episode in episodes]))
    actions = torch.from_numpy(np.stack([episode.actions for episode in episodes]))
    seeds = recorded.seeds[chosen]
    ways = {name: held(actions, wheel) for name, wheel in WHEELS.items()}
    simulated = {name: simulated_reward(seeds, way) for name, way in ways.items()}
    rows: list[dict[str, Any]] = [{"what": "the game", "rewards": simulated}]
    for run in options.runs:
        dynamics = load_dynamics(run / "rnn" / "rnn.safetensors")
        rewards = {name: predicted_reward(dynamics, latents, way) for name, way in ways.items()}
        rows.append({"what": "/".join(run.parts[-2:]), "rewards": rewards})
    for row in rows:
        say(f"{row['what']}: " + ", ".join(f"{k} {v:.2f}" for k, v in row["rewards"].items()))
    write_json(options.data / "wheel.json", {**provenance(), "episodes": len(chosen), "rows": rows})


if __name__ == "__main__":
    main()
