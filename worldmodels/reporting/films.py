"""The recorded videos of an evaluation, and its worst episodes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from worldmodels.reporting.media import MP4, PNG, embedded
from worldmodels.reporting.scores import WORST, Score, filmed

LOWEST = 5
"""Episodes with the lowest returns that are listed."""


class Film(NamedTuple):
    """A recorded episode.

    Args:
        url: of the video, with its data.
        poster: URL of the picture to show before it plays, with its data; None where an older
            version wrote none.
        seed: of the episode.
        total: its return.
    """

    url: str
    poster: str | None
    seed: int
    total: float


def films_of(folder: Path, agent: Score) -> dict[str, Film]:
    """The videos of a finished stage ``evaluate``, by their names in `scores.filmed`.

    Args:
        folder: of the stage.
        agent: the returns of the agent there.

    Raises:
        ArtifactError: a file is not a video, or not a picture.
    """
    films = {}
    for name, episode in filmed(agent.returns).items():
        video = embedded(folder / f"{name}.mp4", MP4)
        if video is not None:
            poster = embedded(folder / f"{name}.png", PNG)
            films[name] = Film(video, poster, agent.seeds[episode], agent.returns[episode])
    return films


LOWEST_HEADER = ("seed", "return", "video")
_PLACES = {"median": "top of the page", **dict.fromkeys(WORST, "below")}
"""Where the page shows a video."""


def lowest_rows(agent: Score, films: Mapping[str, Film]) -> list[tuple[str, ...]]:
    """The cells below `LOWEST_HEADER` for the `LOWEST` episodes of `agent` with the lowest returns.

    Args:
        agent: its returns, one for each episode.
        films: the videos of some episodes, by their names in `scores.filmed`.
    """
    places = {films[name].seed: place for name, place in _PLACES.items() if name in films}
    rows: list[tuple[str, ...]] = []
    for episode in np.argsort(agent.returns)[:LOWEST].tolist():
        seed, total = agent.seeds[episode], agent.returns[episode]
        rows.append((str(seed), f"{total:.1f}", places.get(seed, "not recorded")))
    return rows
