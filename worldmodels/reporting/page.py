"""The report of a run: one HTML page that needs nothing but itself."""

from __future__ import annotations

import base64
import html
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from worldmodels.artifacts import read_json
from worldmodels.reporting.charts import Chart, draw
from worldmodels.reporting.parting import Dreamt, Parting
from worldmodels.reporting.pictures import DreamStrip, png
from worldmodels.reporting.scores import (
    HEADER,
    IN_ITS_DREAM,
    PAPER_ROWS,
    TEMPERATURE_HEADER,
    Score,
    score_rows,
    temperature_rows,
)
from worldmodels.tracking import read_metrics

Folders = dict[str, Path]
"""The finished stages of a run and their folders."""
SOON = 10
"""Steps before an episode's end at which a dream of it is over too soon."""

_STYLE = """
:root { color-scheme: light dark; --faint: #8883 }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 66rem; margin: 2rem auto; padding: 0 1rem }
h1, h2 { line-height: 1.2 } h2 { margin-top: 3rem; border-bottom: 1px solid var(--faint) }
.figures { display: flex; flex-wrap: wrap; gap: .5rem 2.5rem; padding: 0; margin: 1.5rem 0 }
.figures div { display: flex; flex-direction: column-reverse }
.figures dt { opacity: .65; font-size: .9rem } .figures dd { margin: 0; font-size: 1.5rem }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .93rem }
td, th { text-align: left; padding: .3rem 1.5rem .3rem 0; border-bottom: 1px solid var(--faint);
  vertical-align: top }
.wide { overflow-x: auto; margin: 1rem 0 }
figure { margin: 1.5rem 0 } figcaption { opacity: .65; font-size: .9rem; margin-top: .3rem }
img { width: 100%; image-rendering: pixelated } video { max-width: 100%; border-radius: 4px }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(20rem, 1fr)); gap: 1rem }
.charts svg { width: 100%; height: auto; font-family: inherit }
.absent { opacity: .65; font-style: italic } code { font-size: .9em }
details { margin: 1rem 0 } summary { cursor: pointer }
"""

_VISION_CHARTS = (
    Chart(
        {
            "train/reconstruction": "training",
            "validation/reconstruction": "validation",
        },
        "step",
        "squared error of a frame",
        log=True,
    ),
    Chart({"train/kl": "training", "validation/kl": "validation"}, "step", "KL, nats a frame"),
)
_MEMORY_CHARTS = (
    Chart({"train/nll": "training", "validation/nll": "validation"}, "step", "nats a dimension"),
    Chart(
        {"train/reward_mse": "training", "validation/reward_mse": "validation"},
        "step",
        "squared error of the reward",
    ),
)
_CONTROLLER_CHARTS = (
    Chart(
        {
            "fitness/best": "best of the generation",
            "fitness/mean": "mean of the generation",
            "fitness/worst": "worst of the generation",
            "selection/mean": "the search's mean, selection seeds",
        },
        "generation",
        "return",
    ),
    Chart(
        {"fitness/mean": "mean of the generation", "selection/mean": "selection seeds"},
        "steps played",
        "return",
        along="fitness/steps",
    ),
)
_LIKELIHOODS = {
    "mdn_rnn": "MDN-RNN",
    "single_gaussian": "the same with one Gaussian a dimension",
    "copy_last": "a Gaussian around the last latent",
}


def render(
    name: str,
    folders: Folders,
    strip: DreamStrip | None,
    parting: Parting | None = None,
    dreamers: dict[str, Path] | None = None,
) -> str:
    """The page of the run `name`; a section says so where its stage is not finished.

    Args:
        name: of the run.
        folders: its finished stages.
        strip: a recorded episode and M's account of it.
        parting: the agent's episodes and their dreams.
        dreamers: the runs whose controllers were trained in the dreams of this run's M.
    """
    manifests = {stage: read_json(path / "manifest.json") for stage, path in folders.items()}
    sections: list[tuple[str, Callable[[], str]]] = [
        ("Score", lambda: _scores(folders["evaluate"], manifests["evaluate"])),
        ("Episodes", lambda: _episodes(folders["rollouts"], manifests["rollouts"])),
        ("Vision: the VAE", lambda: _vision(folders["vae"])),
        ("Memory: the MDN-RNN", lambda: _memory(folders["rnn"], manifests["rnn"], strip)),
        ("Controller: CMA-ES", lambda: _controller(folders["controller"])),
        *([("Game and dream, the same actions", lambda: _parting(parting))] if parting else []),
        *([("Temperatures", lambda: _temperatures(dreamers))] if dreamers else []),
        ("Time and memory", lambda: _resources(manifests)),
        ("Where it comes from", lambda: _provenance(manifests)),
    ]
    title = html.escape(name)
    body = [f"<h1>World Models: {title}</h1>", _figures(manifests)]
    for heading, section in sections:
        body.append(f"<h2>{heading}</h2>")
        try:
            body.append(section())
        except KeyError as missing:
            body.append(f'<p class="absent">The stage {missing} of this run is not finished.</p>')
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>World Models: {title}</title><style>{_STYLE}</style>"
    )
    return (
        f'<!doctype html><html lang="en"><head>{head}</head><body>'
        + "\n".join(body)
        + "</body></html>\n"
    )


def _figures(manifests: dict[str, Any]) -> str:
    """The few numbers to see first."""
    figures = []
    if "evaluate" in manifests:
        for name, mean in manifests["evaluate"]["summary"].items():
            figures.append((f"mean return, {name}", f"{mean:.0f}"))
    if "rollouts" in manifests:
        figures.append(("frames recorded", f"{manifests['rollouts']['summary']['frames']:,}"))
    total = sum(manifest["wall_s"] for manifest in manifests.values())
    figures.append(("wall time", f"{total / 60:.1f} min"))
    cells = [f"<div><dt>{html.escape(a)}</dt><dd>{html.escape(b)}</dd></div>" for a, b in figures]
    return f'<dl class="figures">{"".join(cells)}</dl>'


def _scores(folder: Path, manifest: dict[str, Any]) -> str:
    records = read_json(folder / "scores.json")
    scores = [Score.from_record(name, record) for name, record in records.items()]
    env = manifest["config"]["env.id"]
    engine = manifest["config"]["env.engine"]
    judge = "Gymnasium's own" if engine == "gymnasium" else f"the {html.escape(engine)} engine's"
    text = f"<p>Played in {judge} {html.escape(env)}.</p>"
    text += _table(score_rows(scores, PAPER_ROWS.get(env, [])), HEADER)
    film = folder / "median.mp4"
    if film.exists():
        source = _data(film.read_bytes(), "video/mp4")
        text += (
            f'<figure><video controls loop muted playsinline src="{source}"></video>'
            "<figcaption>The median episode: what the agent sees, what V keeps of it, and what M"
            " foretold one step before.</figcaption></figure>"
        )
    return text


def _episodes(folder: Path, manifest: dict[str, Any]) -> str:
    summary = manifest["summary"]
    text = (
        f"<p>{summary['episodes']:,} episodes, {summary['frames']:,} frames on"
        f" {html.escape(summary['engine'])}, mean return {summary['mean_return']:.1f}.</p>"
    )
    return text + _picture(
        folder / "contact_sheet.png", "Some episodes, a row each, from start to end."
    )


def _vision(folder: Path) -> str:
    return (
        _charts(_VISION_CHARTS, folder)
        + _picture(
            folder / "reconstructions.png", "Validation frames, and below them what V keeps."
        )
        + _picture(folder / "prior_samples.png", "Frames decoded from z drawn from N(0, 1).")
    )


def _memory(folder: Path, manifest: dict[str, Any], strip: DreamStrip | None) -> str:
    table = manifest["summary"]["validation_nll"]
    rows = [(_LIKELIHOODS[name], f"{value:.4f}") for name, value in table.items()]
    text = _charts(_MEMORY_CHARTS, folder)
    text += _table(rows, ("model", "validation NLL, nats a dimension"))
    if strip is not None:
        times = ", ".join(str(time) for time in strip.times)
        text += _figure(
            png(strip.image),
            f"Validation episode {strip.seed} at steps {times}: recorded; reconstructed; foretold"
            " one step before; dreamt at temperature 1 from the first frame and the actions alone.",
        )
    return text


def _controller(folder: Path) -> str:
    return _charts(_CONTROLLER_CHARTS, folder)


def _parting(parting: Parting) -> str:
    text = (
        f"<p>{len(parting.lengths)} of the agent's episodes, dreamt again: M is told the first"
        " frame and the actions, and nothing else. An agent that exploits its dream dies in the"
        " game where its dreams go on.</p>"
    )
    rows = [_parting_row(parting, dream) for dream in parting.dreams]
    text += _table(rows, _PARTING_HEADER)
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
    return text + _figure(
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
    *("temperature", "deaths in the game", "dreamt by then", "dreams over too soon"),
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


def _temperatures(dreamers: dict[str, Path]) -> str:
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
    return text + _table(temperature_rows(env, runs, random), TEMPERATURE_HEADER)


def _resources(manifests: dict[str, Any]) -> str:
    rows = []
    for stage, manifest in manifests.items():
        rates = [f"{value:,.0f} {unit}" for unit, value in manifest["throughput"].items()]
        used = manifest["resources"]
        memory = [f"{value / 1e9:.2f} GB {where}" for where, value in used["peak_bytes"].items()]
        row = (
            stage,
            f"{manifest['wall_s']:,.1f} s",
            f"{used['cpu_s']:,.1f} s",
            ", ".join(memory),
            ", ".join(rates),
        )
        rows.append(row)
    return _table(rows, ("stage", "wall time", "CPU time", "peak memory", "throughput"))


def _provenance(manifests: dict[str, Any]) -> str:
    rows = []
    for stage, manifest in manifests.items():
        inputs = ", ".join(f"{name} {print_}" for name, print_ in manifest["inputs"].items())
        rows.append((stage, manifest["fingerprint"], inputs, str(manifest["commit"])))
    makers = {
        f"Python {m['python']}, {m['machine']}; "
        + ", ".join(f"{name} {version}" for name, version in m["versions"].items())
        for m in manifests.values()
    }
    merged: dict[str, Any] = {}
    for manifest in manifests.values():
        merged |= manifest["config"]
    keys = sorted((key, str(value)) for key, value in merged.items())
    return (
        _table(rows, ("artifact", "fingerprint", "made from", "commit"))
        + "".join(f"<p>{html.escape(maker)}</p>" for maker in sorted(makers))
        + f"<details><summary>Configuration</summary>{_table(keys, ('key', 'value'))}</details>"
    )


def _table(rows: Iterable[Sequence[str]], header: Sequence[str]) -> str:
    head = "".join(f"<th>{html.escape(cell)}</th>" for cell in header)
    lines = [
        "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    ]
    return f'<div class="wide"><table><tr>{head}</tr>{"".join(lines)}</table></div>'


def _charts(charts: Iterable[Chart], folder: Path) -> str:
    rows = read_metrics(folder / "metrics.csv")
    drawn = [draw(chart, rows) or "" for chart in charts]
    return f'<div class="charts">{"".join(drawn)}</div>'


def _picture(path: Path, caption: str) -> str:
    return _figure(path.read_bytes(), caption) if path.exists() else ""


def _figure(image: bytes, caption: str) -> str:
    text = html.escape(caption)
    source = _data(image, "image/png")
    return f'<figure><img alt="{text}" src="{source}"><figcaption>{text}</figcaption></figure>'


def _data(content: bytes, kind: str) -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"
