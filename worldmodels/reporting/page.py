"""The report of a run: one HTML page that needs nothing but itself."""

from __future__ import annotations

import base64
import html
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from worldmodels.artifacts import read_json
from worldmodels.reporting.charts import curves, over_environment_steps
from worldmodels.reporting.scores import PAPER_ROWS

Folders = dict[str, Path]
"""The finished stages of a run and their folders."""

_STYLE = """
:root { color-scheme: light dark }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem }
h1, h2 { line-height: 1.2 } h2 { margin-top: 2.5rem; border-bottom: 1px solid #8886 }
table { border-collapse: collapse; font-variant-numeric: tabular-nums }
td, th { text-align: left; padding: .25rem 1rem .25rem 0; border-bottom: 1px solid #8884;
  vertical-align: top; overflow-wrap: anywhere }
figure { margin: 1rem 0 } figcaption { color: #888; font-size: .9rem }
img, video { width: 100%; image-rendering: pixelated; border-radius: 4px }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(20rem, 1fr)); gap: 1rem }
.charts svg { width: 100%; height: auto; background: #fff; border-radius: 4px }
.absent { color: #888; font-style: italic } .wide { overflow-x: auto }
"""


def render(name: str, folders: Folders, strip: Path | None) -> str:
    """The page of the run `name`; sections say so where their stage is not finished.

    Args:
        strip: picture of `worldmodels.reporting.pictures.film_strip`.
    """
    manifests = {stage: read_json(path / "manifest.json") for stage, path in folders.items()}
    sections: list[tuple[str, Callable[[], str]]] = [
        ("Score", lambda: _scores(folders["evaluate"], manifests["evaluate"])),
        ("Vision: the VAE", lambda: _vision(folders["vae"])),
        ("Memory: the MDN-RNN", lambda: _memory(folders["rnn"], manifests["rnn"], strip)),
        ("Controller: CMA-ES", lambda: _controller(folders["controller"])),
        ("Throughput", lambda: _throughput(manifests)),
        ("Where it comes from", lambda: _provenance(manifests)),
        ("Configuration", lambda: _configuration(manifests)),
    ]
    body = [f"<h1>World Models: {html.escape(name)}</h1>"]
    for title, section in sections:
        body.append(f"<h2>{title}</h2>")
        try:
            body.append(section())
        except KeyError as missing:
            body.append(f'<p class="absent">The stage {missing} of this run is not finished.</p>')
    head = f"<meta charset=utf-8><meta name=viewport content='width=device-width'><title>{name}"
    return f"<!doctype html><html lang=en><head>{head}</title><style>{_STYLE}</style></head>" + (
        "<body>" + "\n".join(body) + "</body></html>\n"
    )


def _scores(folder: Path, manifest: dict[str, Any]) -> str:
    rows = []
    for name, score in read_json(folder / "scores.json").items():
        low, high = score["interval"]
        seeds = f"{len(score['seeds'])} (seeds {score['seeds'][0]} to {score['seeds'][-1]})"
        spread = f"{score['mean']:.1f} ± {score['std']:.1f}"
        middle = f"{score['interquartile_mean']:.1f}"
        rows.append((name, spread, f"{low:.1f} to {high:.1f}", middle, seeds))
    env = manifest["config"]["env.id"]
    for paper in PAPER_ROWS.get(env, []):
        rows.append((paper.name, f"{paper.mean:.0f} ± {paper.std:.0f}", "", "", paper.note))
    header = ("policy", "mean ± std", "95 % interval", "interquartile mean", "episodes")
    text = f"<p>In Gymnasium's own {html.escape(env)}.</p>" + _table(rows, header)
    film = folder / "median.mp4"
    if film.exists():
        text += (
            f'<figure><video controls loop muted src="{_data(film, "video/mp4")}"></video>'
            "<figcaption>The median episode: what the agent sees, what V keeps of it, and what M"
            " foretold one step before.</figcaption></figure>"
        )
    return text


def _vision(folder: Path) -> str:
    path = folder / "metrics.csv"
    error = {"train/reconstruction": "training", "validation/reconstruction": "validation"}
    kl = {"train/kl": "training", "validation/kl": "validation"}
    charts = [
        curves(path, error, "step", "squared error a frame", log=True),
        curves(path, kl, "step", "KL, nats a frame"),
    ]
    pictures = [
        _picture(folder / "reconstructions.png", "Validation frames, and below them what V keeps."),
        _picture(folder / "prior_samples.png", "Frames decoded from z drawn from N(0, 1)."),
    ]
    return _charts(charts) + "".join(pictures)


def _memory(folder: Path, manifest: dict[str, Any], strip: Path | None) -> str:
    nll = {"train/nll": "training", "validation/nll": "validation"}
    reward = {"train/reward_mse": "training", "validation/reward_mse": "validation"}
    path = folder / "metrics.csv"
    charts = [
        curves(path, nll, "step", "nats a dimension"),
        curves(path, reward, "step", "squared error of the reward"),
    ]
    labels = {
        "mdn_rnn": "MDN-RNN",
        "single_gaussian": "the same with one Gaussian a dimension",
        "copy_last": "a Gaussian around the last latent",
    }
    table = manifest["summary"]["validation_nll"]
    rows = [(labels[name], f"{value:.4f}") for name, value in table.items()]
    text = _charts(charts) + _table(rows, ("model", "validation NLL, nats a dimension"))
    if strip is not None:
        text += _picture(
            strip,
            "A validation episode, every fourth frame: recorded; reconstructed; foretold one step"
            " before; and dreamt at temperature 1 from the first frame and the actions alone.",
        )
    return text


def _controller(folder: Path) -> str:
    path = folder / "metrics.csv"
    names = {
        "fitness/best": "best of the generation",
        "fitness/mean": "mean of the generation",
        "fitness/worst": "worst of the generation",
        "selection/mean": "mean of the search, selection seeds",
    }
    return _charts([curves(path, names, "generation", "return"), over_environment_steps(path)])


def _throughput(manifests: dict[str, Any]) -> str:
    rows = []
    for stage, manifest in manifests.items():
        rates = [f"{value:,.0f} {unit}" for unit, value in manifest["throughput"].items()]
        rows.append((stage, f"{manifest['wall_s']:,.1f} s", ", ".join(rates)))
    return _table(rows, ("stage", "wall time", "throughput"))


def _provenance(manifests: dict[str, Any]) -> str:
    rows = []
    for stage, manifest in manifests.items():
        inputs = ", ".join(f"{name} {print_}" for name, print_ in manifest["inputs"].items())
        versions = ", ".join(f"{name} {v}" for name, v in manifest["versions"].items())
        made = f"commit {manifest['commit']}, Python {manifest['python']}, {manifest['machine']}"
        rows.append((stage, manifest["fingerprint"], inputs, f"{made}; {versions}"))
    return _table(rows, ("artifact", "fingerprint", "made from", "made by"))


def _configuration(manifests: dict[str, Any]) -> str:
    merged: dict[str, Any] = {}
    for manifest in manifests.values():
        merged |= manifest["config"]
    return _table(sorted((key, str(value)) for key, value in merged.items()), ("key", "value"))


def _table(rows: Iterable[Sequence[str]], header: Sequence[str]) -> str:
    head = "".join(f"<th>{html.escape(cell)}</th>" for cell in header)
    lines = [
        "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    ]
    return f'<div class="wide"><table><tr>{head}</tr>{"".join(lines)}</table></div>'


def _charts(charts: Sequence[str | None]) -> str:
    return f'<div class="charts">{"".join(chart or "" for chart in charts)}</div>'


def _picture(path: Path, caption: str) -> str:
    if not path.exists():
        return ""
    image = f'<img alt="{html.escape(caption)}" src="{_data(path, "image/png")}">'
    return f"<figure>{image}<figcaption>{html.escape(caption)}</figcaption></figure>"


def _data(path: Path, kind: str) -> str:
    return f"data:{kind};base64,{base64.b64encode(path.read_bytes()).decode()}"
