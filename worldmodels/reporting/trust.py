"""Sections of a page on how far a dream can be trusted: the agent's episodes dreamt again, and
scores of controllers trained in dreams at several temperatures."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from worldmodels.files import read_json
from worldmodels.reporting.charts import Chart, draw
from worldmodels.reporting.markup import figure, table
from worldmodels.reporting.parting import Dreamt, Parting
from worldmodels.reporting.pictures import png
from worldmodels.reporting.scores import (
    IN_ITS_DREAM,
    TEMPERATURE_HEADER,
    Score,
    temperature_rows,
)

SOON = 10
"""Steps before an episode's end at which a dream of it is over too soon."""


def parted(parting: Parting) -> str:
    """How fast game and dream part under the same actions."""
    text = (
        f"<p>{len(parting.lengths)} of the agent's episodes, dreamt again: M is told the first"
        " frame and the actions, and nothing else. Where the game is over and its dreams go on, an"
        " agent exploits them, unless it has won.</p>"
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
    drawn = [_over_steps(label, lines) for label, lines in curves.items()]
    text += f'<div class="charts">{"".join(drawn)}</div>'
    times = ", ".join(str(time) for time in parting.times)
    names = ", ".join(f"{dream.temperature:g}" for dream in parting.dreams)
    return text + figure(
        png(parting.image),
        f"Episode {parting.seed} at steps {times}: played; as V keeps it; dreamt at temperature"
        f" {names}.",
    )


def _over_steps(label: str, curves: dict[str, np.ndarray]) -> str:
    """A chart of curves (T,)."""
    rows = [
        (at + 1, name, float(curve[at]), 0.0)
        for name, curve in curves.items()
        for at in np.unique(np.linspace(0, len(curve) - 1, 200).astype(int)).tolist()
    ]
    return draw(Chart({name: name for name in curves}, "step", label), rows) or ""


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


def temperatures(dreamers: dict[str, Path]) -> str:
    """The dream's score beside the game's, run by run."""
    runs = []
    for name, root in dreamers.items():
        records = read_json(root / "evaluate" / "scores.json")
        dream, game = (Score.from_record(who, records[who]) for who in (IN_ITS_DREAM, "agent"))
        config = read_json(root / "controller" / "manifest.json")["config"]
        runs.append((float(config["controller.temperature"]), name, dream, game))
        random = Score.from_record("random policy", records["random policy"])
        env = read_json(root / "evaluate" / "manifest.json")["config"]["env.id"]
    text = (
        "<p>Controllers trained in the dreams of this run's M, at these temperatures: their scores"
        " there and in the game. One that is far better in its dream has learned to exploit it.</p>"
    )
    return text + table(temperature_rows(env, runs, random), TEMPERATURE_HEADER)
