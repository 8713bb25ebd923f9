"""How fast the game and the dream part: the same actions from the same first frame.

An agent's recorded episodes are dreamt again: M begins at what V sees of the first frame and is
told the actions alone. Where an agent lives on in its dream and dies in the game, its dreams do not
end where its episodes do. Distances are over the active dimensions of z: the others carry nothing,
and M dreams noise of them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from worldmodels.data.episodes import EpisodeSet
from worldmodels.data.latents import FirstLatents
from worldmodels.data.shards import Episode
from worldmodels.models.dynamics import DynamicsModel
from worldmodels.models.encoder import Encoder, to_input
from worldmodels.models.features import FeatureSpec
from worldmodels.reporting.pictures import COLUMNS, STRIDE, decode, rows_of
from worldmodels.worlds.dream import DreamWorld

TEMPERATURES = (0.1, 0.5, 1.0, 1.15, 1.3)
"""Those of the paper's table."""
ACTIVE = 0.01
"""Variance of a latent's mean over frames above which V uses it (Burda et al. 2016)."""
_BATCH = 256


class Course(NamedTuple):
    """How episodes went, in the game or in a dream.

    T is the longest episode's steps; what is beyond an episode's own end in the game is NaN.
    """

    reward: np.ndarray  # (episodes, T): of a dream as M expects it, 0 from its end on
    ended: np.ndarray  # (episodes, T): 1 from the step on that terminated it

    def share_ended(self) -> np.ndarray:
        """Share of the episodes that were terminated by each step, (T,)."""
        share: np.ndarray = np.fmax.accumulate(self.ended, axis=1).mean(axis=0)
        return share

    def mean_return(self) -> np.ndarray:
        """Mean return up to each step, (T,)."""
        gained: np.ndarray = np.nancumsum(self.reward, axis=1).mean(axis=0)
        return gained


class Dreamt(NamedTuple):
    """The dreams of some episodes at one temperature."""

    temperature: float
    course: Course
    distance: np.ndarray  # (episodes, T): root mean square, of its latent from the game's


class Parting(NamedTuple):
    """Episodes of the game, and their dreams.

    Args:
        lengths: steps of each episode, (episodes,).
        game: how they went in the game.
        unrelated: the distance of two frames that have nothing to do with each other.
        dreams: at each temperature.
        image: uint8 (rows, columns, 4), one episode: recorded, as V keeps it, and dreamt at each
            temperature, a row each.
        times: (columns,) the step that each column shows.
        seed: of that episode.
    """

    lengths: np.ndarray
    game: Course
    unrelated: float
    dreams: tuple[Dreamt, ...]
    image: np.ndarray
    times: tuple[int, ...]
    seed: int


@torch.inference_mode()
def part(
    vision: Encoder,
    memory: DynamicsModel,
    episodes: EpisodeSet,
    temperatures: tuple[float, ...] = TEMPERATURES,
) -> Parting:
    """Dream all of `episodes` again, V and M both on the CPU."""
    played = [episodes.episode(number) for number in range(episodes.num_episodes)]
    latents = [_encode(vision, episode) for episode in played]
    every = torch.cat(latents)
    active = every.var(dim=0) > ACTIVE
    active = active if active.any() else torch.ones_like(active)
    lengths = np.array([len(episode.actions) for episode in played])
    dreams, shown = [], []
    longest = int(lengths.argmax())
    last = min((COLUMNS - 1) * STRIDE, int(lengths[longest]))
    times = np.linspace(0, last, COLUMNS).round().astype(int)
    for temperature in temperatures:
        dream, track = _dream(memory, played, latents, active, temperature, longest)
        dreams.append(dream)
        shown.append(decode(vision, track[times]))
    reward, ended = (np.full((len(played), lengths.max()), np.nan) for _ in range(2))
    for number, episode in enumerate(played):
        reward[number, : lengths[number]] = episode.rewards
        ended[number, : lengths[number]] = episode.terminated
    kept = decode(vision, latents[longest][times])
    return Parting(
        lengths=lengths,
        game=Course(reward, ended),
        unrelated=_unrelated(every[:, active]),
        dreams=tuple(dreams),
        image=rows_of(played[longest].frames[times], kept, *shown),
        times=tuple(times.tolist()),
        seed=played[longest].seed,
    )


def _encode(vision: Encoder, episode: Episode) -> Tensor:
    """Means of the latents of its frames: (steps + 1, latent)."""
    frames = episode.frames
    parts = [torch.from_numpy(frames[at : at + _BATCH]) for at in range(0, len(frames), _BATCH)]
    return torch.cat([vision.encode(to_input(part)).mean for part in parts])


def _dream(
    memory: DynamicsModel,
    played: list[Episode],
    latents: list[Tensor],
    active: Tensor,
    temperature: float,
    shown: int,
) -> tuple[Dreamt, Tensor]:
    """All episodes' dreams, and the latents (steps + 1, latent) of that of episode `shown`."""
    nowhere = np.zeros((1, memory.latent_size), np.float32)
    world = DreamWorld(memory, FirstLatents(nowhere, nowhere), temperature, FeatureSpec(state=()))
    order = sorted(range(len(played)), key=lambda number: -len(played[number].actions))
    steps = len(played[order[0]].actions)
    distance, reward, ended = (np.full((len(played), steps), np.nan) for _ in range(3))
    lanes = np.array(order)
    world.begin(torch.stack([latents[n][0] for n in order]), [played[n].seed for n in order])
    over = np.zeros(len(played), bool)
    track = [latents[shown][:1]]
    for time in range(steps):
        actions = np.stack([played[number].actions[time] for number in lanes])
        step = world.step(torch.from_numpy(actions))
        over[lanes] |= step.terminated
        game = torch.stack([latents[number][time + 1] for number in lanes])
        apart = (world.latents - game)[:, active]
        distance[lanes, time] = apart.square().mean(dim=1).sqrt()
        reward[lanes, time] = np.where(over[lanes], 0, step.reward)
        ended[lanes, time] = over[lanes]
        if lanes[0] == shown:
            track.append(world.latents[:1])
        going = np.array([len(played[number].actions) > time + 1 for number in lanes])
        if not going.all():
            lanes = lanes[going]
            world.keep(going)
        if not len(lanes):
            break
    return Dreamt(temperature, Course(reward, ended), distance), torch.cat(track)


def _unrelated(latents: Tensor) -> float:
    """The distance of `latents` (frames, latent) from one another."""
    order = torch.from_numpy(np.random.default_rng(0).permutation(len(latents)))
    return float((latents - latents[order]).square().mean().sqrt())
