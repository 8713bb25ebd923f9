"""What recorded episodes of CarRacing cover: the track, the latents, and a common test set.

Shapes are in the letters of docs/shapes.md: N environments, Z latent, T tiles.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import NamedTuple

import numpy as np
import torch
from gymnasium.vector import AutoresetMode

from worldmodels.data.episodes import EpisodeSet
from worldmodels.data.latents import LatentSet
from worldmodels.data.shards import Episode
from worldmodels.envs.carracing.courses import seeded_course
from worldmodels.envs.carracing.state import HULL, PX, PY, VX, VY
from worldmodels.envs.carracing.vector import CarRacingVectorEnv
from worldmodels.envs.television import ON
from worldmodels.models.dynamics import DynamicsModel, Sequences

TOGETHER = 64
"""Episodes that are played again at a time."""
TILES, METRES, SPEED = 10, 5.0, 10.0
"""Sizes of a cell: tiles along the track, metres from its middle, m/s."""
BINS = 5
"""Cells at each side of the middle; what is further is in the last one."""
REFERENCE = 2048
"""Latents of the test set whose nearest recorded one is found, at most."""


class Track(NamedTuple):
    """How much of the tracks episodes cover.

    Args:
        tiles: share of its track's tiles that an episode visits, the mean over episodes.
        cells: distinct cells of place along the track, distance from its middle and speed: the sum
            over episodes, each on a track of its own, of those that it visits.
    """

    tiles: float
    cells: int


def track(episodes: EpisodeSet, frame_skip: int) -> Track:
    """Play episodes again in the native simulator, from their seeds and actions.

    Args:
        episodes: recorded with this simulator, none of them mirrored or a branch.
        frame_skip: steps of the simulator for each recorded one.

    Raises:
        SystemExit: the rewards are not those that were recorded.
    """
    shares, cells = [], 0
    for first in range(0, episodes.num_episodes, TOGETHER):
        numbers = range(first, min(first + TOGETHER, episodes.num_episodes))
        part = [episodes.episode(number) for number in numbers]
        found, visited = _played(part, frame_skip)
        cells += sum(len(one) for one in found)
        shares += visited
    return Track(float(np.mean(shares)), cells)


def _played(
    episodes: Sequence[Episode], frame_skip: int
) -> tuple[list[set[tuple[int, ...]]], list[float]]:
    """The cells of each of N episodes, and the share of the tiles that it visits."""
    lengths = np.array([len(episode.actions) for episode in episodes])
    actions = np.zeros((lengths.max(), len(episodes), 3), np.float64)
    rewards = np.zeros((lengths.max(), len(episodes)))
    for number, episode in enumerate(episodes):
        actions[: lengths[number], number] = episode.actions
    seeds: list[int | None] = [episode.seed for episode in episodes]
    courses = [seeded_course(episode.seed, False) for episode in episodes]
    tiles = [np.asarray(course.track.tiles).mean(axis=1) for course in courses]  # (T, 2) each
    cells: list[set[tuple[int, ...]]] = [set() for _ in episodes]
    shares = [0.0] * len(episodes)
    envs = CarRacingVectorEnv(
        len(episodes), None, size=64, autoreset_mode=AutoresetMode.DISABLED, copy=False
    )
    with closing(envs):
        envs.reset(seed=seeds)
        for time in range(lengths.max()):
            for _ in range(frame_skip):
                rewards[time] += envs.step(actions[time])[1]
            state = envs.get_state()
            for number in np.flatnonzero(time < lengths).tolist():
                hull = state["envs.body"][number, HULL]
                cells[number].add(cell(tiles[number], hull))
                shares[number] = int(state["envs.visits"][number]) / len(tiles[number])
    for number, episode in enumerate(episodes):
        if not np.allclose(rewards[: lengths[number], number], episode.rewards, atol=1e-3):
            raise SystemExit(f"episode of seed {episode.seed}: played again, its rewards differ")
    return cells, shares


def cell(tiles: np.ndarray, hull: np.ndarray) -> tuple[int, int, int]:
    """Place along the track, distance from its middle (positive to the left), and speed, in units
    of cells.

    Args:
        tiles: middle of each tile, (T, 2) metres, in the order of the track.
        hull: a body of `worldmodels.envs.carracing.state`.
    """
    place = np.array([hull[PX], hull[PY]], np.float64)
    nearest = int(np.square(tiles - place).sum(axis=1).argmin())
    ahead = tiles[(nearest + 1) % len(tiles)] - tiles[nearest - 1]
    off = place - tiles[nearest]
    aside = (ahead[0] * off[1] - ahead[1] * off[0]) / np.hypot(*ahead)
    speed = float(np.hypot(hull[VX], hull[VY]))
    beside = int(np.clip(np.floor(aside / METRES), -BINS, BINS - 1))
    return nearest // TILES, beside, int(speed // SPEED)


def watched(episodes: EpisodeSet, action: int) -> float:
    """The share of the steps in which the television of `action` is on."""
    taken = [episodes.episode(number).actions[:, action] for number in range(episodes.num_episodes)]
    return float(np.mean(np.concatenate(taken) > ON))


def means(latents: LatentSet) -> np.ndarray:
    """The posterior means of all frames, (frames, Z) float64."""
    rows = [latents.episode(number).mean for number in range(len(latents.lengths))]
    return np.concatenate(rows).astype(np.float64)


def log_determinant(rows: np.ndarray) -> float:
    """Of the covariance matrix of latents (frames, Z), in nats per dimension: twice the logarithm
    of the volume that they fill, up to a constant, if they are normal."""
    covariance = np.cov(rows, rowvar=False) + 1e-9 * np.eye(rows.shape[1])
    return float(np.linalg.slogdet(covariance).logabsdet / rows.shape[1])


def distance(reference: np.ndarray, rows: np.ndarray) -> float:
    """The distance from latents (M, Z) of the test set to the nearest of `rows` (frames, Z), the
    mean over at most `REFERENCE` of the former, evenly spread."""
    every = np.linspace(0, len(reference) - 1, min(len(reference), REFERENCE)).round().astype(int)
    found = []
    for part in np.array_split(reference[every], max(1, len(every) // 64)):
        square = np.square(part).sum(1)[:, None] - 2 * part @ rows.T + np.square(rows).sum(1)
        found.append(np.sqrt(square.min(axis=1).clip(min=0)))
    return float(np.concatenate(found).mean())


@torch.inference_mode()
def likelihood(members: Sequence[DynamicsModel], tests: Sequence[LatentSet]) -> float:
    """The negative log-likelihood of the test set, in nats a latent dimension and transition: the
    mean over the members, each of which predicts whole episodes."""
    total, steps = 0.0, 0
    torch.manual_seed(0)  # of the latents that are sampled
    for latents in tests:
        for number in range(len(latents.lengths)):
            episode = latents.episode(number)
            count = len(episode.actions)
            batch = Sequences(
                mean=torch.from_numpy(episode.mean)[None],
                logvar=torch.from_numpy(episode.logvar)[None],
                actions=torch.from_numpy(episode.actions)[None],
                rewards=torch.from_numpy(episode.rewards)[None],
                terminated=torch.from_numpy(episode.terminated)[None].float(),
                mask=torch.ones(1, count, dtype=torch.bool),
                starts=torch.ones(1, dtype=torch.bool),
            )
            for member in members:
                _, logs, _ = member.loss(batch, member.initial_state(1))
                total += float(logs["nll"]) * count
                steps += count
    return total / steps
