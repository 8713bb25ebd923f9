"""The recorded videos of an evaluation, and its worst episodes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from worldmodels.reporting.media import MP4, PNG, embedded
from worldmodels.reporting.scores import WORST, Score, video_episodes

LOWEST = 5
"""Episodes with the lowest returns that are listed."""


class EmbeddedVideo(NamedTuple):
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


def videos_of(folder: Path, agent: Score) -> dict[str, EmbeddedVideo]:
    """The videos of a finished stage ``evaluate``, by their names in `scores.video_episodes`.

    Args:
        folder: of the stage.
        agent: the returns of the agent there.

    Raises:
        ArtifactError: a file is not a video, or not a picture.
    """
    videos = {}
    for name, episode in video_episodes(agent.returns).items():
        url = embedded(folder / f"{name}.mp4", MP4)
        if url is not None:
            poster = embedded(folder / f"{name}.png", PNG)
            videos[name] = EmbeddedVideo(url, poster, agent.seeds[episode], agent.returns[episode])
    return videos


LOWEST_HEADER = ("seed", "return", "video")
_PLACES = {"median": "top of the page", **dict.fromkeys(WORST, "below")}
"""Where the page shows a video."""


def lowest_rows(agent: Score, videos: Mapping[str, EmbeddedVideo]) -> list[tuple[str, ...]]:
    """The cells below `LOWEST_HEADER` for the `LOWEST` episodes of `agent` with the lowest returns.

    Args:
        agent: its returns, one for each episode.
        videos: the videos of some episodes, by their names in `scores.video_episodes`.
    """
    places = {videos[name].seed: place for name, place in _PLACES.items() if name in videos}
    rows: list[tuple[str, ...]] = []
    for episode in np.argsort(agent.returns)[:LOWEST].tolist():
        seed, total = agent.seeds[episode], agent.returns[episode]
        rows.append((str(seed), f"{total:.1f}", places.get(seed, "not recorded")))
    return rows
