"""Sections of a page on how far a dream can be trusted: the agent's episodes dreamt again, and
scores of controllers trained in dreams at several temperatures."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from markupsafe import Markup

from worldmodels.errors import ArtifactError
from worldmodels.reporting.charts import Chart, draw
from worldmodels.reporting.markup import figure, paragraph, side_by_side, table
from worldmodels.reporting.parting import Dreamt, Parting
from worldmodels.reporting.pictures import png
from worldmodels.reporting.records import read_record, read_scores
from worldmodels.reporting.scores import IN_ITS_DREAM, TEMPERATURE_HEADER, temperature_rows

SOON = 10
"""Steps before an episode's end at which a dream of it is over too soon."""


def parted(parting: Parting) -> Markup:
    """How fast game and dream part under the same actions."""
    text = paragraph(
        f"{len(parting.lengths)} of the agent's episodes, dreamt again: M is told the first"
        " frame and the actions, and nothing else. Where the game is over and its dreams go on, an"
        " agent exploits them, unless it has won."
    )
    rows = [_parting_row(parting, dream) for dream in parting.dreams]
    text += table(rows, _PARTING_HEADER)
    courses = {"game": parting.game}
    distances = {"two unrelated frames": np.full(parting.lengths.max(), parting.unrelated)}
    for dream in parting.dreams:
        courses[f"dreamt at {dream.temperature:g}"] = dream.course
        distances[f"dreamt at {dream.temperature:g}"] = np.nanmean(dream.distance, axis=0)
    curves = {
        "distance of latents": distances,
        "share of episodes that are over": {n: c.share_ended() for n, c in courses.items()},
        "return so far": {name: course.mean_return() for name, course in courses.items()},
    }
    text += side_by_side(_over_steps(label, lines) for label, lines in curves.items())
    times = ", ".join(str(time) for time in parting.times)
    names = ", ".join(f"{dream.temperature:g}" for dream in parting.dreams)
    return text + figure(
        png(parting.image),
        f"Episode {parting.seed} at steps {times}: played; as V keeps it; dreamt at temperature"
        f" {names}.",
    )


def _over_steps(label: str, curves: dict[str, np.ndarray]) -> Markup | None:
    """A chart of curves (T,)."""
    rows = [
        (at + 1, name, float(curve[at]), 0.0)
        for name, curve in curves.items()
        for at in np.unique(np.linspace(0, len(curve) - 1, 200).astype(int)).tolist()
    ]
    return draw(Chart({name: name for name in curves}, "step", label), rows)


_PARTING_HEADER = (
    *("temperature", "over in the game", "in the dream too by then", "dreams over too soon"),
    *("steps until half as far apart as unrelated frames", "return dreamt / played"),
)


def _parting_row(parting: Parting, dream: Dreamt) -> tuple[str, ...]:
    lengths, last = parting.lengths, (np.arange(len(parting.lengths)), parting.lengths - 1)
    died, over = parting.game.ended[last] == 1, dream.course.ended[last] == 1
    lived = np.nansum(dream.course.ended == 0, axis=1)  # steps until the dream was over
    soon = over & (lived + 1 < lengths - SOON)
    far = np.nanmean(dream.distance, axis=0) > parting.unrelated / 2
    played = np.nansum(parting.game.reward)
    return (
        f"{dream.temperature:g}",
        f"{died.sum()} of {len(died)}",
        f"{(over & died).sum()}",
        f"{soon.sum()}",
        str(int(far.argmax()) + 1) if far.any() else "never",
        f"{np.nansum(dream.course.reward) / played:.2f}" if played else "–",
    )


def temperatures(dreamers: dict[str, Path]) -> Markup:
    """The dream's score beside the game's, run by run."""
    runs = []
    for name, root in dreamers.items():
        path = root / "evaluate" / "scores.json"
        scores = read_scores(path)
        for who in (IN_ITS_DREAM, "agent", "random policy"):
            if who not in scores:
                raise ArtifactError(f"{path}: {who} is missing; run its stage again, fresh=true")
        config = read_record(root / "controller" / "manifest.json").group("config")
        temperature = config.number("controller.temperature")
        runs.append((temperature, name, scores[IN_ITS_DREAM], scores["agent"]))
        random = scores["random policy"]
        env = read_record(root / "evaluate" / "manifest.json").group("config").text("env.id")
    text = paragraph(
        "Controllers trained in the dreams of this run's M, at these temperatures: their scores"
        " there and in the game. One that is far better in its dream has learned to exploit it."
    )
    return text + table(temperature_rows(env, runs, random), TEMPERATURE_HEADER)
