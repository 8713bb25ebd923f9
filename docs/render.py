"""Puts measured figures into the documentation; none is typed by hand.

    python docs/render.py data/quick            # take over the results of a run
    python docs/render.py data/throughput.json  # take over what `make bench` measured; the same
                                                # for carracing_parity.json, carracing_speed.json,
                                                # takecover_engines.json, study-carracing.json, ...
    python docs/render.py data/laptop --publish # and its pictures, and its agent, to pretrained/;
                                                # the same for data/takecover
    python docs/render.py                       # render the pages again

What was taken over lies in ``docs/results/`` as JSON. A page has regions ``<!-- name -->`` to
``<!-- /name -->`` that are written from it.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import imageio_ffmpeg
import numpy as np
import torch

from worldmodels.agent import load_agent
from worldmodels.artifacts import read_json, write_json
from worldmodels.reporting.charts import Chart, draw
from worldmodels.reporting.curve import PAPER_CURVE, Point, learning_curve
from worldmodels.reporting.scores import (
    HEADER,
    PAPER_ROWS,
    PAPER_TEMPERATURES,
    Score,
    score_rows,
    summarise,
)

DOCS = Path(__file__).resolve().parent
RESULTS = DOCS / "results"
PRETRAINED = DOCS.parent / "pretrained"
PAGES = (DOCS.parent / "README.md", DOCS / "carracing.md", DOCS / "results.md")
STAGES = ("rollouts", "vae", "rnn", "controller", "evaluate")
PICTURES = {"episodes": "rollouts/contact_sheet.png", "vision": "vae/reconstructions.png"}
TAKE_COVER = "vizdoom.gymnasium_wrapper:VizdoomTakeCover-v1"
SCOUT = tuple(f"scout/{stage}" for stage in STAGES[:-1])


class Published(NamedTuple):
    """What a card says of the agent of a run, beside its figures.

    Args:
        folder: in ``pretrained/``.
        game: its name.
        env: the words that name it to the program; empty for the default.
        judged: where it was played.
        sees: what it sees.
    """

    folder: str
    game: str
    env: str
    judged: str
    sees: str


PUBLISHED = {
    "laptop": Published(
        "carracing",
        "CarRacing-v3",
        "",
        "Gymnasium's own CarRacing-v3, 1,000 steps at most",
        "the upper 84 of the 96 rows of a frame, reduced to 64x64, in the default colours. Other\n"
        "  colours (`domain_randomize`) and other games are strange to it",
    ),
    "takecover": Published(
        "takecover",
        "Doom Take Cover",
        " env=takecover",
        "ViZDoom's own VizdoomTakeCover-v1, 2,100 steps at most, a point each; C was trained\n"
        "in M's dream alone",
        "the upper 200 of the 240 rows of a frame, reduced to 64x64. Other scenarios are strange\n"
        "  to it",
    ),
}
"""Runs whose agents are in ``pretrained/``."""


def take_run(folder: Path) -> None:
    """Keep what a run's page needs: manifests, scores, and its search."""
    manifests = {
        stage: read_json(folder / stage / "manifest.json")
        for stage in (*SCOUT, *STAGES)
        if (folder / stage).exists()
    }
    record = {
        "scores": read_json(folder / "evaluate" / "scores.json"),
        "stages": manifests,
        "curve": learning_curve(folder / "controller"),
    }
    write_json(RESULTS / f"{folder.name}.json", record)


def publish(folder: Path) -> None:
    """Copy a run's agent to ``pretrained/``, with a card, and keep its pictures."""
    published, source = PUBLISHED[folder.name], folder / "controller" / "agent"
    target = PRETRAINED / published.folder
    target.mkdir(parents=True, exist_ok=True)
    for path in source.iterdir():
        shutil.copyfile(path, target / path.name)
    agent = load_agent(target)
    assert agent.memory is not None
    run = read_json(RESULTS / f"{folder.name}.json")
    search = run["stages"]["controller"]
    hours = sum(stage["wall_s"] for stage in run["stages"].values()) / 3600
    card = CARD.format(
        **published._asdict(),
        vision=f"{_millions(agent.vision)} M parameters",
        memory=f"{_millions(agent.memory)} M",
        controller=f"{agent.parameters.size:,}",
        size=f"{sum(path.stat().st_size for path in source.iterdir()) / 1e6:.1f}",
        scores=_scores(run),
        hours=f"{hours:.1f}",
        steps=f"{search['summary']['steps'] / 1e6:.1f}",
        generations=search["summary"]["generations"],
        maker=_maker(run),
    )
    (target / "README.md").write_text(card)
    for name, picture in PICTURES.items():
        shutil.copyfile(folder / picture, RESULTS / f"{folder.name}-{name}.png")
    film = folder / "evaluate" / "median.mp4"
    # Every fourth frame of ten seconds, at half the size, with a palette of its own.
    chain = "select=not(mod(n\\,4)),setpts=N/12.5/TB,scale=iw/2:-1:flags=neighbor,split[a][b];"
    chain += "[a]palettegen=max_colors=64[p];[b][p]paletteuse=dither=none"
    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-y", "-loglevel", "error", "-t", "10", "-i", film]
    command += ["-vf", chain, "-r", "12.5", RESULTS / f"{folder.name}.gif"]
    subprocess.run([str(word) for word in command], check=True)


def _millions(module: torch.nn.Module) -> str:
    return f"{sum(parameter.numel() for parameter in module.parameters()) / 1e6:.2f}"


CARD = """# An agent for {game}

A VAE ({vision}), an MDN-RNN ({memory}) and a linear controller ({controller}), trained by

    python -m worldmodels stage=all preset=laptop{env}

{scores}
Played in {judged}. The same figure, or another with other seeds:

    python -m worldmodels stage=evaluate run=check{env} model=pretrained/{folder} \\
        evaluate.first_seed=0

- {size} MB of safetensors, no pickle; what was used in bfloat16 in training is in bfloat16.
- It sees {sees}.
- The controller was selected on other seeds than it was trained on, and is judged on others again
  (`worldmodels/seeds.py`).
- Made in {hours} hours, judging included; its search took {generations} generations, {steps} M
  steps.
- Made by {maker}
MIT licence. How it learned: [docs/results.md](../../docs/results.md).
"""


def render() -> None:
    """Draw the curves, and write every region of every page."""
    draw_curves(*map(_result, ("laptop", "study-carracing", "takecover")))
    for page in PAGES:
        page.write_text(rendered(page.read_text()))


def rendered(text: str) -> str:
    """`text` with its regions written from the results that are there."""
    for name, region in regions().items():
        pattern = rf"(?<=<!-- {name} -->\n).*?(?=<!-- /{name} -->)"
        text = re.sub(pattern, region.replace("\\", r"\\"), text, flags=re.DOTALL)
    return text


def _result(name: str) -> Any:
    return read_json(RESULTS / f"{name}.json")


def regions() -> dict[str, str]:
    """Region -> Markdown: those of `REGIONS`, and each table of a study as one of its name."""
    written = {name: write(_result(source)) for name, (write, source) in REGIONS.items()}
    studies = [read_json(path) for path in sorted(RESULTS.glob("study-*.json"))]
    return written | _studies([run for study in studies for run in study["runs"]])


def draw_curves(laptop: dict[str, Any], study: dict[str, Any], doom: dict[str, Any]) -> None:
    """The searches beside the paper's curve, and the first of each ablation."""
    lines = {"this run": [Point(*point) for point in laptop["curve"]], "paper": list(PAPER_CURVE)}
    _curves("learning-steps", lines, "steps played in training", lambda point: point.steps)
    _curves("learning-hours", lines, "hours", lambda point: point.seconds / 3600)
    ablation = {
        run["what"]: [Point(*point) for point in run["curve"]]
        for run in study["runs"]
        if run["table"] == "ablation" and run["seed"] == 1
    }
    _curves("ablation", ablation, "steps played in training", lambda point: point.steps)
    dreamt = {"in the dream": [Point(*point) for point in doom["curve"]]}
    _curves("doom-steps", dreamt, "steps dreamt", lambda point: point.steps)


def _curves(
    name: str, lines: dict[str, list[Point]], x_label: str, x: Callable[[Point], float]
) -> None:
    """Write ``<name>.svg``, legible on a white page and on a black one."""
    chart = Chart({label: label for label in lines}, x_label, "return", log_x="paper" in lines)
    rows = [(x(p), label, p.score, 0.0) for label, points in lines.items() for p in points]
    svg = draw(chart, rows)
    assert svg is not None
    head, rest = svg.split(">", 1)
    style = "<style>svg{color:#222}@media(prefers-color-scheme:dark){svg{color:#ddd}}</style>"
    (RESULTS / f"{name}.svg").write_text(f"{head}>{style}{rest}")


def _studies(runs: list[dict[str, Any]]) -> dict[str, str]:
    """Table -> a row for each variant: its scores, seed by seed and together."""
    return {
        table: _study([run for run in runs if run["table"] == table])
        for table in dict.fromkeys(run["table"] for run in runs)
    }


def _study(runs: list[dict[str, Any]]) -> str:
    rows = []
    published = any(run["table"] == "temperatures" for run in runs)
    dreamt = any(run["world"] == "dream" for run in runs)
    likely = any(run["nll"] is not None for run in runs)
    for name in dict.fromkeys(run["name"] for run in runs):
        same = [run for run in runs if run["name"] == name]
        games = [np.array(run["returns"]["game"]) for run in same]
        both = summarise(name, np.concatenate(games), range(sum(map(len, games))))
        row = [same[0]["what"], f"**{both.mean:.0f}** ± {both.std:.0f}"]
        row.append(f"{both.interval[0]:.0f} to {both.interval[1]:.0f}")
        row.append(", ".join(f"{game.mean():.0f}" for game in games))
        if dreamt:
            row.append(", ".join(f"{np.mean(run['returns']['dream']):.0f}" for run in same))
        if published:
            paper = PAPER_TEMPERATURES[TAKE_COVER][float(name.removeprefix("tau-"))]
            row += [f"{mean} ± {std}" for mean, std in (paper.real, paper.dream)]
        if likely:
            row.append(", ".join("–" if r["nll"] is None else f"{r['nll']:.4f}" for r in same))
        row.append(" ".join(f"`{word}`" for word in same[0]["overrides"]) or "–")
        rows.append(row)
    header = ["", "score", "95 % interval", "seed by seed"]
    header += ["in its dream"] * dreamt + ["paper: game", "paper: dream"] * published
    header += ["M's nats a dimension"] * likely + ["overrides"]
    return _table(header, rows)


def _maker(run: dict[str, Any]) -> str:
    """What made a run: hardware, versions, commits."""
    manifests = run["stages"].values()
    makers = {
        f"{m['machine']}, Python {m['python']}, "
        + ", ".join(f"{name} {version}" for name, version in m["versions"].items())
        for m in manifests
    }
    commits = ", ".join(sorted({str(m["commit"]) for m in manifests}))
    return "".join(f"{maker}; commit {commits}.\n" for maker in sorted(makers))


def _scores(run: dict[str, Any]) -> str:
    env = run["stages"]["evaluate"]["config"]["env.id"]
    scores = [Score.from_record(name, record) for name, record in run["scores"].items()]
    return _table(HEADER, score_rows(scores, PAPER_ROWS.get(env, [])))


def _likelihood(run: dict[str, Any]) -> str:
    nll = run["stages"]["rnn"]["summary"]["validation_nll"]
    rows = [
        ("MDN-RNN", f"{nll['mdn_rnn']:.4f}"),
        ("the same with one Gaussian", f"{nll['single_gaussian']:.4f}"),
        ("a Gaussian around the last latent", f"{nll['copy_last']:.4f}"),
    ]
    return _table(("model", "validation nats a dimension"), rows)


def _stages(run: dict[str, Any]) -> str:
    rows = []
    for stage, manifest in run["stages"].items():
        rates = ", ".join(f"{value:,.0f} {unit}" for unit, value in manifest["throughput"].items())
        peak = max(manifest["resources"]["peak_bytes"].values()) / 1e9
        rows.append((stage, f"{manifest['wall_s']:,.0f} s", f"{peak:.1f} GB", rates))
    total = sum(manifest["wall_s"] for manifest in run["stages"].values())
    rows.append(("all", f"{total / 60:.1f} min", "", ""))
    return _table(("stage", "wall time", "peak memory", "throughput"), rows)


def _throughput(bench: dict[str, Any]) -> str:
    rows = []
    for figure in bench["figures"]:
        peak = f"{figure['plain_peak_bytes'] / 1e9:.1f} / {figure['peak_bytes'] / 1e9:.1f} GB"
        by = " a core" if figure["plain_cores"] == 1 and bench["cores"] > 1 else ""
        rows.append(
            (
                figure["what"],
                f"{figure['plain']:,.0f}",
                f"{figure['ours']:,.0f} {figure['unit']}",
                f"× {figure['ratio']:.1f}{by}",
                peak,
            )
        )
    header = (
        "",
        "plain loop",
        f"here, {bench['cores']} cores",
        "ratio",
        "peak memory of a process",
    )
    return _table(header, rows)


def _parity(record: dict[str, Any]) -> str:
    tracks, dynamics, seen = record["tracks"], record["dynamics"], record["pictures"]
    rows = [
        (
            "tracks",
            f"{tracks['seeds']:,} seeds",
            f"largest error of a corner {tracks['largest_error']:g}",
        ),
        (
            "dynamics",
            f"{dynamics['episodes']} episodes by four drivers, {dynamics['steps']:,} steps,"
            f" {dynamics['terminated']} terminated",
            f"same rewards, tiles and ends in {dynamics['equal_events']}, every bit of the bodies"
            f" in {dynamics['equal_bits']}",
        ),
        (
            "pictures",
            f"{seen['frames']} frames",
            f"{seen['road_mean']:.2f} grey levels over the road view ({seen['road_worst']:.2f} in"
            f" the worst), {seen['bar_mean']:.2f} over the instruments",
        ),
    ]
    for one in record["scores"]:
        low, high = one["interval"]
        rows.append(
            (
                f"score of an agent at {one['gymnasium']:.0f}",
                f"{one['episodes']} episodes",
                f"{one['gymnasium']:.1f} in Gymnasium, {one['native']:.1f} here; 95 % interval of"
                f" the difference {low:.1f} to {high:.1f}",
            )
        )
    return _table(("", "compared", "result"), rows)


def _engines(record: dict[str, Any]) -> str:
    rows = []
    for name, what in (("vizdoom", "ViZDoom"), ("envpool", "EnvPool")):
        played = record[name]
        survived = f"{played['mean_length']:.1f} ± {played['std_length']:.1f}"
        rows.append((what, survived, f"{played['mean_return']:.1f}", f"{played['steps/s']:,.0f}"))
    return _table(("", "steps survived", "return", "steps/s"), rows) + (
        f"\n{record['episodes']} episodes each, {record['same_length']} of them as long in both;"
        f" that their lengths are of one distribution has a p of {record['ks_pvalue']:.2f}"
        " (Kolmogorov and Smirnov).\n"
    )


def _speed(record: dict[str, Any]) -> str:
    figures = record["figures"]
    alone = {f["what"]: f["steps_s"] for f in figures if f["threads"] == 1 and f["lanes"] <= 16}
    rows = []
    for figure in figures:
        each = figure["steps_s"] / figure["threads"]
        rows.append(
            (
                figure["what"],
                str(figure["lanes"]),
                str(figure["threads"]),
                f"{figure['steps_s']:,.0f}",
                f"× {each / alone['Gymnasium']:.0f}",
                f"× {each / alone['EnvPool']:.1f}",
            )
        )
    header = ("engine", "lanes", "threads", "steps/s", "a core, to Gymnasium", "a core, to EnvPool")
    fastest = max(
        f["steps_s"] for f in figures if f["what"] == "native 64x64" and f["threads"] == 1
    )
    share = fastest * 64 * 64 * 3 / record["bandwidth"]
    return _table(header, rows) + (
        f"\nOne core writes {record['bandwidth'] / 1e9:.1f} GB/s to memory here; writing the 64x64"
        f" frames is {share:.1%} of that at most.\n"
    )


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


REGIONS: dict[str, tuple[Callable[[Any], str], str]] = {
    "scores": (_scores, "laptop"),
    "stages": (_stages, "laptop"),
    "maker": (_maker, "laptop"),
    "likelihood": (_likelihood, "laptop"),
    "quick_scores": (_scores, "quick"),
    "quick_stages": (_stages, "quick"),
    "doom_scores": (_scores, "takecover"),
    "doom_stages": (_stages, "takecover"),
    "doom_maker": (_maker, "takecover"),
    "engines": (_engines, "takecover_engines"),
    "throughput": (_throughput, "throughput"),
    "parity": (_parity, "carracing_parity"),
    "speed": (_speed, "carracing_speed"),
}
"""Who writes a region, from which result."""


def main() -> None:
    """Take over what is named, then render."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("paths", nargs="*", type=Path, help="runs and files of figures")
    parser.add_argument("--publish", action="store_true", help="the runs' agent as well")
    options = parser.parse_args()
    for path in options.paths:
        if path.is_dir():
            take_run(path)
            if options.publish:
                publish(path)
        else:
            shutil.copyfile(path, RESULTS / path.name)
    render()


if __name__ == "__main__":
    main()
