"""The report of a run: one HTML page that needs nothing but itself."""

from __future__ import annotations

import html
from collections.abc import Callable
from pathlib import Path
from typing import Any

from worldmodels.files import read_json
from worldmodels.reporting.charts import Chart
from worldmodels.reporting.markup import STYLE, charts, data_url, figure, picture, table
from worldmodels.reporting.parting import Parting
from worldmodels.reporting.pictures import DreamStrip, png
from worldmodels.reporting.scores import HEADER, PAPER_ROWS, Score, exploited, score_rows
from worldmodels.reporting.trust import parted, temperatures

Folders = dict[str, Path]
"""The finished stages of a run and their folders."""


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
    """
    manifests = {stage: read_json(path / "manifest.json") for stage, path in folders.items()}
    sections: list[tuple[str, Callable[[], str]]] = [
        ("Score", lambda: _scores(folders["evaluate"], manifests["evaluate"])),
        ("Episodes", lambda: _episodes(folders["rollouts"], manifests["rollouts"])),
        ("Vision: the VAE", lambda: _vision(folders["vae"])),
        ("Memory: the MDN-RNN", lambda: _memory(folders["rnn"], manifests["rnn"], strip)),
        ("Controller: CMA-ES", lambda: _controller(folders["controller"])),
        *([("Game and dream, the same actions", lambda: parted(parting))] if parting else []),
        *([("Temperatures", lambda: temperatures(dreamers))] if dreamers else []),
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
            body.append(f'<p class="absent">{_absent(str(missing.args[0]), manifests)}</p>')
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>World Models: {title}</title><style>{STYLE}</style>"
    )
    return (
        f'<!doctype html><html lang="en"><head>{head}</head><body>'
        + "\n".join(body)
        + "</body></html>\n"
    )


def _absent(stage: str, manifests: dict[str, Any]) -> str:
    """Why there is no section of `stage`."""
    search = manifests.get("controller", {}).get("inputs", {})
    if stage in ("rollouts", "vae", "rnn") and "base" in search:
        return "This run begins from the V and M of a trained agent."
    return f"The stage '{stage}' of this run is not finished."


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
    text += table(score_rows(scores, PAPER_ROWS.get(env, [])), HEADER)
    if (warning := exploited(scores)) is not None:
        text += f"<p><strong>{html.escape(warning)}</strong></p>"
    film = folder / "median.mp4"
    if film.exists():
        source = data_url(film.read_bytes(), "video/mp4")
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
    return text + picture(
        folder / "contact_sheet.png", "Some episodes, a row each, from start to end."
    )


def _vision(folder: Path) -> str:
    return (
        charts(_VISION_CHARTS, folder)
        + picture(folder / "reconstructions.png", "Validation frames, and below them what V keeps.")
        + picture(folder / "prior_samples.png", "Frames decoded from z drawn from N(0, 1).")
    )


def _memory(folder: Path, manifest: dict[str, Any], strip: DreamStrip | None) -> str:
    nll = manifest["summary"]["validation_nll"]
    rows = [(_LIKELIHOODS[name], f"{value:.4f}") for name, value in nll.items()]
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


def _controller(folder: Path) -> str:
    return charts(_CONTROLLER_CHARTS, folder)


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
    return table(rows, ("stage", "wall time", "CPU time", "peak memory", "throughput"))


def _provenance(manifests: dict[str, Any]) -> str:
    rows = []
    for stage, manifest in manifests.items():
        inputs = ", ".join(f"{name} {print_}" for name, print_ in manifest["inputs"].items())
        rows.append((stage, manifest["fingerprint"], inputs, manifest["commit"] or "unknown"))
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
        table(rows, ("artifact", "fingerprint", "made from", "commit"))
        + "".join(f"<p>{html.escape(maker)}</p>" for maker in sorted(makers))
        + f"<details><summary>Configuration</summary>{table(keys, ('key', 'value'))}</details>"
    )
