"""Open-loop predictions: how far the dynamics model stays close to recorded episodes.

The dynamics model starts from the encoded first frame of a recorded episode and is given
the recorded actions; it receives no later frame. Its predicted latents, rewards and terminations
are compared with the recorded ones. A controller that exploits the model shows as an episode that
terminated in the environment and continues in the prediction.

Latent errors are computed over active latent dimensions only: the mean of an inactive dimension
carries no information about the frame, and the model samples it from the prior.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from worldmodels.data.episodes import EpisodeSet
from worldmodels.data.latents import FirstLatents
from worldmodels.data.shards import Episode
from worldmodels.models.dynamics import DynamicsModel
from worldmodels.models.encoder import Encoder
from worldmodels.models.features import FeatureSpec
from worldmodels.reporting.pictures import COLUMNS, STRIDE, decode, image_grid, posterior_means
from worldmodels.worlds.dream import DreamWorld
from worldmodels.worlds.members import SamplingRule
from worldmodels.worlds.world import Step

TEMPERATURES = (0.1, 0.5, 1.0, 1.15, 1.3)
"""Sampling temperatures of Ha & Schmidhuber 2018, table 2."""
ACTIVE_VARIANCE = 0.01
"""A latent dimension is active if its mean varies more than this over frames (Burda et al. 2016,
"Importance Weighted Autoencoders", section 5.2)."""


class Trajectories(NamedTuple):
    """Rewards and terminations of E episodes, recorded or predicted.

    T is the number of steps of the longest recorded episode. Entries after the end of a recorded
    episode are NaN.
    """

    rewards: np.ndarray  # (E, T); predicted: the expected reward, 0 from the termination on
    terminated: np.ndarray  # (E, T): 1 from the step that terminated the episode on, else 0

    def fraction_terminated(self) -> np.ndarray:
        """Fraction of the episodes that have terminated by each step, (T,)."""
        fraction: np.ndarray = np.fmax.accumulate(self.terminated, axis=1).mean(axis=0)
        return fraction

    def mean_return(self) -> np.ndarray:
        """Sum of rewards up to each step, averaged over episodes, (T,)."""
        cumulative: np.ndarray = np.nancumsum(self.rewards, axis=1).mean(axis=0)
        return cumulative


class OpenLoopRollout(NamedTuple):
    """Open-loop predictions of E episodes at one sampling temperature."""

    temperature: float
    trajectories: Trajectories
    latent_error: np.ndarray  # (E, T): RMS over active dimensions, predicted - encoded latent


class OpenLoopResult(NamedTuple):
    """Recorded episodes and their open-loop predictions.

    Args:
        lengths: steps of each recorded episode, (E,).
        recorded: rewards and terminations of the recorded episodes.
        reference_error: RMS difference of the latents of randomly paired frames: the latent error
            of a prediction that is unrelated to the episode.
        rollouts: predictions, one for each temperature.
        image: uint8 (rows, columns, 4), the longest episode: recorded frames, reconstructions,
            and one row of predictions for each temperature.
        times: the step that each column of `image` shows.
        seed: of the episode in `image`.
    """

    lengths: np.ndarray
    recorded: Trajectories
    reference_error: float
    rollouts: tuple[OpenLoopRollout, ...]
    image: np.ndarray
    times: tuple[int, ...]
    seed: int


@torch.inference_mode()
def open_loop(
    encoder: Encoder,
    dynamics: DynamicsModel,
    episodes: EpisodeSet,
    frame_skip: int,
    temperatures: tuple[float, ...] = TEMPERATURES,
) -> OpenLoopResult:
    """Predict every episode of `episodes` from its first frame and its recorded actions.

    Args:
        encoder: VAE, float32, on the CPU.
        dynamics: model trained on the latents of `encoder`, on the CPU.
        episodes: recorded episodes; the random numbers of a prediction depend on the episode's
            seed.
        frame_skip: steps of the simulator in a step of the episodes.
        temperatures: sampling temperatures of the mixture (paper, section 4).
    """
    recorded = [episodes.episode(number) for number in range(episodes.num_episodes)]
    latents = [posterior_means(encoder, episode.frames) for episode in recorded]
    all_latents = torch.cat(latents)
    active = all_latents.var(dim=0) > ACTIVE_VARIANCE
    active = active if active.any() else torch.ones_like(active)
    lengths = np.array([len(episode.actions) for episode in recorded])
    longest = int(lengths.argmax())
    last = min((COLUMNS - 1) * STRIDE, int(lengths[longest]))
    times = np.linspace(0, last, COLUMNS).round().astype(int)
    rollouts, predicted_rows = [], []
    for temperature in temperatures:
        world = open_loop_world(dynamics, temperature, frame_skip)
        trajectories, error, predicted = _predict(world, recorded, latents, active, longest)
        rollouts.append(OpenLoopRollout(temperature, trajectories, error))
        predicted_rows.append(decode(encoder, predicted[times]))
    rewards, terminated = (np.full((len(recorded), lengths.max()), np.nan) for _ in range(2))
    for number, episode in enumerate(recorded):
        rewards[number, : lengths[number]] = episode.rewards
        terminated[number, : lengths[number]] = episode.terminated
    reconstructed = decode(encoder, latents[longest][times])
    return OpenLoopResult(
        lengths=lengths,
        recorded=Trajectories(rewards, terminated),
        reference_error=_reference_error(all_latents[:, active]),
        rollouts=tuple(rollouts),
        image=image_grid(recorded[longest].frames[times], reconstructed, *predicted_rows),
        times=tuple(times.tolist()),
        seed=recorded[longest].seed,
    )


def _predict(
    world: DreamWorld,
    recorded: list[Episode],
    latents: list[Tensor],
    active: Tensor,
    shown: int,
) -> tuple[Trajectories, np.ndarray, Tensor]:
    """Predictions of all episodes, their errors (episodes, steps), and the latents
    (steps + 1, latent) of episode `shown`.

    `shown` is a longest episode: environments are ordered by length, so it is environment 0 until
    the end.
    """
    order = sorted(range(len(recorded)), key=lambda number: -len(recorded[number].actions))
    steps = len(recorded[order[0]].actions)
    error, rewards, terminated = (np.full((len(recorded), steps), np.nan) for _ in range(3))
    world.begin(torch.stack([latents[n][0] for n in order]), [recorded[n].seed for n in order])
    ended = np.zeros(len(recorded), bool)
    shown_latents = [latents[shown][:1]]
    for time, rows, step in under_recorded_actions(world, [recorded[n].actions for n in order]):
        running = np.array(order)[rows]
        ended[running] |= step.terminated
        encoded = torch.stack([latents[number][time + 1] for number in running])
        difference = (world.latents - encoded)[:, active]
        error[running, time] = difference.square().mean(dim=1).sqrt()
        rewards[running, time] = np.where(ended[running], 0, step.reward)
        terminated[running, time] = ended[running]
        if running[0] == shown:
            shown_latents.append(world.latents[:1])
    return Trajectories(rewards, terminated), error, torch.cat(shown_latents)


def open_loop_world(dynamics: DynamicsModel, temperature: float, frame_skip: int = 1) -> DreamWorld:
    """A dream that is begun with given latents, on the device of `dynamics`.

    Args:
        dynamics: model that predicts.
        temperature: of the distribution of the next latent.
        frame_skip: see `SamplingRule`.
    """
    # DreamWorld needs first latents to draw from; `begin` sets them explicitly instead.
    unused = np.zeros((1, dynamics.latent_size), np.float32)
    first, features = FirstLatents(unused, unused), FeatureSpec(state=())
    rule = SamplingRule(frame_skip=frame_skip)
    return DreamWorld(dynamics, first, temperature, features, rule=rule)


def under_recorded_actions(
    world: DreamWorld, actions: Sequence[np.ndarray]
) -> Iterator[tuple[int, np.ndarray, Step]]:
    """Step a world that was begun, until every row has had its last action.

    Args:
        world: with N rows.
        actions: of each row, (steps, A), at least one.

    Yields:
        the time, the rows (n,) that took this step, and its results, n rows.
    """
    rows = np.arange(len(actions))
    for time in range(max(map(len, actions))):
        step = world.step(torch.from_numpy(np.stack([actions[int(row)][time] for row in rows])))
        yield time, rows, step
        remaining = np.array([len(actions[int(row)]) > time + 1 for row in rows])
        if not remaining.all():
            rows = rows[remaining]
            world.keep(remaining)


def _reference_error(latents: Tensor) -> float:
    """RMS difference between `latents` (frames, latent) and a random permutation of them."""
    order = torch.from_numpy(np.random.default_rng(0).permutation(len(latents)))
    return float((latents - latents[order]).square().mean().sqrt())
