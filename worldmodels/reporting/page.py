"""The report of a run: one HTML page that needs nothing but itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from markupsafe import Markup

from worldmodels.reporting.charts import Chart
from worldmodels.reporting.markup import (
    charts,
    document,
    figure,
    film,
    paragraph,
    picture,
    table,
)
from worldmodels.reporting.parting import Parting
from worldmodels.reporting.pictures import DreamStrip, png
from worldmodels.reporting.records import Record, read_record, read_scores
from worldmodels.reporting.scores import HEADER, PAPER_ROWS, exploited, score_rows
from worldmodels.reporting.trust import parted, temperatures

Folders = dict[str, Path]
"""The finished stages of a run and their folders."""
Manifests = dict[str, Record]
"""The finished stages of a run and what their manifests say."""


class _Section(NamedTuple):
    """A section, and the stage without which it says that this is missing."""

    heading: str
    stage: str | None
    write: Callable[[], Markup]


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
    Chart(
        {"train/termination_bce": "training", "validation/termination_bce": "validation"},
        "step",
        "cross entropy of the end",
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

    Raises:
        ArtifactError: a file of a finished stage is damaged, or not what its stage writes.
    """
    made = {stage: read_record(path / "manifest.json") for stage, path in folders.items()}
    sections = [
        _Section("Score", "evaluate", lambda: _scores(folders["evaluate"], made["evaluate"])),
        _Section("Episodes", "rollouts", lambda: _episodes(folders["rollouts"], made["rollouts"])),
        _Section("Vision: the VAE", "vae", lambda: _vision(folders["vae"])),
        _Section("Memory: the MDN-RNN", "rnn", lambda: _memory(folders["rnn"], made["rnn"], strip)),
        _Section("Controller: CMA-ES", "controller", lambda: _controller(folders["controller"])),
    ]
    if parting:
        heading = "Game and dream, the same actions"
        sections.append(_Section(heading, None, lambda: parted(parting)))
    if dreamers:
        sections.append(_Section("Temperatures", None, lambda: temperatures(dreamers)))
    sections.append(_Section("Time and memory", None, lambda: _resources(made)))
    sections.append(_Section("Where it comes from", None, lambda: _provenance(made)))
    title = f"World Models: {name}"
    body = [Markup("<h1>{}</h1>").format(title), _figures(made)]
    for section in sections:
        body.append(Markup("<h2>{}</h2>").format(section.heading))
        if section.stage is None or section.stage in folders:
            body.append(section.write())
        else:
            absent = _absent(section.stage, made)
            body.append(Markup('<p class="absent">{}</p>').format(absent))
    return document(title, body)


def _absent(stage: str, made: Manifests) -> str:
    """Why there is no section of `stage`."""
    inputs = made["controller"].texts("inputs") if "controller" in made else {}
    if stage in ("rollouts", "vae", "rnn") and "base" in inputs:
        return "This run begins from the V and M of a trained agent."
    return f"The stage '{stage}' of this run is not finished."


def _figures(made: Manifests) -> Markup:
    """The few numbers to see first."""
    figures = []
    if "evaluate" in made:
        for name, mean in made["evaluate"].numbers("summary").items():
            figures.append((f"mean return, {name}", f"{mean:.0f}"))
    if "rollouts" in made:
        frames = made["rollouts"].group("summary").number("frames")
        figures.append(("frames recorded", f"{frames:,.0f}"))
    total = sum(manifest.number("wall_s") for manifest in made.values())
    figures.append(("wall time", f"{total / 60:.1f} min"))
    cell = Markup("<div><dt>{}</dt><dd>{}</dd></div>")
    cells = Markup("").join(cell.format(what, value) for what, value in figures)
    return Markup('<dl class="figures">{}</dl>').format(cells)


def _scores(folder: Path, manifest: Record) -> Markup:
    scores = list(read_scores(folder / "scores.json").values())
    config = manifest.group("config")
    env, engine = config.text("env.id"), config.text("env.engine")
    judge = "Gymnasium's own" if engine == "gymnasium" else f"the {engine} engine's"
    text = paragraph(f"Played in {judge} {env}.")
    text += table(score_rows(scores, PAPER_ROWS.get(env, [])), HEADER)
    if (warning := exploited(scores)) is not None:
        text += paragraph(Markup("<strong>{}</strong>").format(warning))
    return text + film(
        folder / "median.mp4",
        "The median episode: what the agent sees, what V keeps of it, and what M foretold one step"
        " before.",
    )


def _episodes(folder: Path, manifest: Record) -> Markup:
    summary = manifest.group("summary")
    text = paragraph(
        f"{summary.number('episodes'):,.0f} episodes, {summary.number('frames'):,.0f} frames on"
        f" {summary.text('engine')}, mean return {summary.number('mean_return'):.1f}."
    )
    return text + picture(
        folder / "contact_sheet.png", "Some episodes, a row each, from start to end."
    )


def _vision(folder: Path) -> Markup:
    return (
        charts(_VISION_CHARTS, folder)
        + picture(folder / "reconstructions.png", "Validation frames, and below them what V keeps.")
        + picture(folder / "prior_samples.png", "Frames decoded from z drawn from N(0, 1).")
    )


def _memory(folder: Path, manifest: Record, strip: DreamStrip | None) -> Markup:
    nll = manifest.group("summary").numbers("validation_nll")
    rows = [(_LIKELIHOODS.get(name, name), f"{value:.4f}") for name, value in nll.items()]
    text = charts(_MEMORY_CHARTS, folder)
    text += table(rows, ("model", "validation NLL, nats a dimension"))
    if strip is not None:
        times = ", ".join(str(time) for time in strip.times)
        text += figure(
            png(strip.image),
            f"Validation episode {strip.seed} at steps {times}: recorded; reconstructed; foretold"
            " one step before; dreamt at temperature 1 from the first frame and the actions alone.",
        )
    return text


def _controller(folder: Path) -> Markup:
    return charts(_CONTROLLER_CHARTS, folder)


def _resources(made: Manifests) -> Markup:
    rows = []
    for stage, manifest in made.items():
        rates = [f"{rate:,.0f} {unit}" for unit, rate in manifest.numbers("throughput").items()]
        used = manifest.group("resources")
        peaks = used.numbers("peak_bytes")
        memory = [f"{peak / 1e9:.2f} GB {where}" for where, peak in peaks.items()]
        row = (
            stage,
            f"{manifest.number('wall_s'):,.1f} s",
            f"{used.number('cpu_s'):,.1f} s",
            ", ".join(memory),
            ", ".join(rates),
        )
        rows.append(row)
    return table(rows, ("stage", "wall time", "CPU time", "peak memory", "throughput"))


def _provenance(made: Manifests) -> Markup:
    rows, makers = [], set()
    merged: dict[str, object] = {}
    for stage, manifest in made.items():
        inputs = ", ".join(f"{name} {print_}" for name, print_ in manifest.texts("inputs").items())
        commit = manifest.text("commit") if manifest.fields.get("commit") else "unknown"
        rows.append((stage, manifest.text("fingerprint"), inputs, commit))
        versions = [f"{name} {version}" for name, version in manifest.texts("versions").items()]
        python = f"Python {manifest.text('python')}, {manifest.text('machine')}"
        makers.add(f"{python}; {', '.join(versions)}")
        merged |= manifest.group("config").fields
    keys = sorted((key, str(value)) for key, value in merged.items())
    details = Markup("<details><summary>Configuration</summary>{}</details>")
    return (
        table(rows, ("artifact", "fingerprint", "made from", "commit"))
        + Markup("").join(paragraph(maker) for maker in sorted(makers))
        + details.format(table(keys, ("key", "value")))
    )
