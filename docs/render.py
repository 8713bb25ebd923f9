"""Puts measured figures into the documentation; none is typed by hand.

    python docs/render.py data/quick            # take over the results of a run, also one of
                                                # stage=iterate: data/dream-1
    python docs/render.py data/throughput.json  # take over what `make bench` measured; the same
                                                # for carracing_parity.json, carracing_speed.json,
                                                # takecover_engines.json, dynamics.json,
                                                # encoders.json, probe.json, calibration.json,
                                                # vision.json, generalisation.json,
                                                # dream_speed.json, model_comparison.json,
                                                # study-carracing.json, rounds/rounds.json,
                                                # plan-quick.json, ...
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
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import clusters
import comparisons
import explorations
import figures
import frames
import methods
import model_free
import models
import over_seeds
import places
import plans
import rounds
import settings
import tables
from publish import publish

from worldmodels.files.atomic import read_json, write_json
from worldmodels.reporting.charts import Chart, Drawn, draw
from worldmodels.reporting.learning import PAPER_CURVE, Point
from worldmodels.reporting.progress import search_curve
from worldmodels.reporting.rounds import ROUNDS

DOCS = Path(__file__).resolve().parent
RESULTS = DOCS / "results"
PAGES = (
    DOCS.parent / "README.md",
    DOCS / "simulator.md",
    DOCS / "baselines.md",
    DOCS / "concepts.md",
    DOCS / "configuration.md",
    DOCS / "dream.md",
    DOCS / "elsewhere.md",
    DOCS / "exploration.md",
    DOCS / "follow.md",
    DOCS / "index.md",
    DOCS / "plan.md",
    DOCS / "play.md",
    DOCS / "ray.md",
    DOCS / "results-carracing.md",
    DOCS / "results-dream.md",
    DOCS / "results-models.md",
    DOCS / "results-studies.md",
    DOCS / "results-takecover.md",
    DOCS / "robustness.md",
    DOCS / "store.md",
)
STAGES = ("rollouts", "vae", "rnn", "controller", "evaluate")
BOOTSTRAP = tuple(f"bootstrap/{stage}" for stage in STAGES[:-1])


def take_run(folder: Path) -> None:
    """Keep what a run's page needs: manifests, scores, and its search."""
    manifests = {
        stage: read_json(folder / stage / "manifest.json")
        for stage in (*BOOTSTRAP, *STAGES)
        if (folder / stage).exists()
    }
    record = {
        "scores": read_json(folder / "evaluate" / "scores.json"),
        "stages": manifests,
        "curve": search_curve(folder / "controller") if "controller" in manifests else [],
    }
    write_json(RESULTS / f"{folder.name}.json", record)


def take_study(path: Path) -> None:
    """Store the runs of a study; runs stored before stay unless the study has them again."""
    kept = RESULTS / path.name
    runs = read_json(kept)["runs"] if kept.exists() else []
    new = read_json(path)
    every = {_key(run): run for run in (*runs, *new["runs"])}
    write_json(kept, new | {"runs": list(every.values())})


def _key(run: dict[str, Any]) -> tuple[str, str, int]:
    return run["table"], run["name"], run["seed"]


def render() -> None:
    """Draw the curves, and write every region of every page."""
    draw_curves(*map(_result, ("laptop", "study-carracing", "takecover")))
    runs = _methods()
    drawn = methods.figure(methods.progress(runs, _result("baselines")["runs"]), runs)
    for axis, svg in zip(methods.AXES, drawn, strict=True):
        _write(f"methods-{axis}", svg)
    for page in PAGES:
        page.write_text(rendered(page.read_text()))


def rendered(text: str) -> str:
    """`text` with its regions written from the results that are there."""
    for name, region in regions().items():
        pattern = rf"(?<=<!-- {name} -->\n).*?(?=<!-- /{name} -->)"
        text = re.sub(pattern, region.replace("\\", r"\\"), text, flags=re.DOTALL)
    return text


def _methods() -> dict[str, list[dict[str, Any]]]:
    """Label -> results of the runs that `methods` compares."""
    return {label: [_result(name) for name in names] for label, names in methods.METHODS.items()}


def _result(name: str) -> Any:
    return read_json(RESULTS / f"{name}.json")


@cache
def regions() -> dict[str, str]:
    """Region -> Markdown: those of `REGIONS`, and each table of a study as one of its name."""
    written = {name: write(_result(source)) for name, (write, source) in REGIONS.items()}
    by_data = {what: _result(source) for what, source in DOOM_DATA.items()}
    written["doom_data"] = tables.data_sources(by_data)
    studies = [read_json(path) for path in sorted(RESULTS.glob("study-*.json"))]
    planned = [read_json(path) for path in sorted(RESULTS.glob("plan-*.json"))]
    written |= {
        "keys": settings.keys(),
        "presets": settings.presets(),
        "plans": plans.plans(planned),
    }
    written |= {
        f"{name}_{table}": write(_result(name), table)
        for name, (write, shown) in BY_TABLE.items()
        for table in shown
    }
    compared = _result("model_comparison")
    written |= {
        f"{env}_{name}": table(compared, env)
        for env in compared["settings"]
        for name, table in comparisons.TABLES.items()
    }
    written["took"] = plans.took(planned)
    in_quick = {what: _result(source) for what, source in QUICK_MODELS.items()}
    written["quick_models"] = models.in_quick(in_quick)
    runs = {region: [_result(name) for name in seeds.names] for region, seeds in SEEDS.items()}
    for region, seeds in SEEDS.items():
        second = [_result(f"{name}-second") for name in seeds.names if seeds.second]
        written[region] = over_seeds.agents(runs[region], seeds.failed, second)
    written["dream_by_round"] = rounds.by_round(runs["dream_seeds"])
    compared_methods = methods.progress(_methods(), _result("baselines")["runs"])
    written |= {f"methods_{axis}": methods.table(compared_methods, axis) for axis in methods.AXES}
    recorded = {name: _result(name) for names in figures.RUNS.values() for name in names}
    written["figures"] = figures.figures(recorded)
    agents = {
        "CarRacing, `preset=laptop`": runs["laptop_seeds"],
        "CarRacing, `preset=fine-tune`": runs["fine_tune"],
        "CarRacing, learned model only, `preset=dream-rounds`": runs["dream_seeds"],
        "CarRacing, `preset=quick`": runs["quick_seeds"],
        "Doom Take Cover, `preset=laptop`": runs["doom_seeds"],
    }
    written["headline"] = tables.headline(agents, PAPER_CURVE[-1])
    return written | tables.studies([run for study in studies for run in study["runs"]])


def draw_curves(laptop: dict[str, Any], study: dict[str, Any], doom: dict[str, Any]) -> None:
    """The searches beside the paper's curve, and the first of each ablation."""
    lines = {"this run": [Point(*point) for point in laptop["curve"]], "paper": list(PAPER_CURVE)}
    _curves("learning-steps", lines, "environment steps in training", lambda point: point.steps)
    _curves("learning-hours", lines, "hours", lambda point: point.seconds / 3600)
    ablation = {
        run["what"]: [Point(*point) for point in run["curve"]]
        for run in study["runs"]
        if run["table"] == "ablation" and run["seed"] == 1
    }
    _curves("ablation", ablation, "environment steps in training", lambda point: point.steps)
    dreamt = {"in the learned model": [Point(*point) for point in doom["curve"]]}
    _curves("doom-steps", dreamt, "actions in the learned model", lambda point: point.steps)


def _curves(
    name: str, lines: dict[str, list[Point]], x_label: str, x: Callable[[Point], float]
) -> None:
    """Draw lines, and write ``<name>.svg``."""
    chart = Chart(
        {label: label for label in lines},
        x_label,
        "return",
        log_x="paper" in lines,
        reference="paper",
    )
    rows = [(x(p), label, p.score, 0.0) for label, points in lines.items() for p in points]
    _write(name, draw(chart, rows))


def _write(name: str, svg: Drawn | None) -> None:
    """Write ``<name>.svg``, legible on a white page and on a black one."""
    assert svg is not None
    head, rest = svg.split(">", 1)
    style = "<style>svg{color:#222}@media(prefers-color-scheme:dark){svg{color:#ddd}}</style>"
    (RESULTS / f"{name}.svg").write_text(f"{head}>{style}{rest}")


REGIONS: dict[str, tuple[Callable[[Any], str], str]] = {
    "scores": (tables.scores, "laptop"),
    "stages": (tables.stages, "laptop"),
    "maker": (tables.maker, "laptop"),
    "likelihood": (tables.likelihood, "laptop"),
    "second": (tables.scores, "laptop-second"),
    "longer_search": (tables.scores, "laptop-28M"),
    "quick_scores": (tables.scores, "quick"),
    "quick_second": (tables.scores, "quick-second"),
    "quick_stages": (tables.stages, "quick"),
    "doom_scores": (tables.scores, "takecover"),
    "dream_rounds": (rounds.scores, "dreamt-rounds"),
    "dream_cool": (rounds.scores, "dreamt-rounds-cool"),
    "wheel": (tables.wheel, "wheel"),
    "sharing": (tables.sharing, "sharing"),
    "chains": (places.places, "chains"),
    "mirror": (tables.mirror, "mirror"),
    "scaling_measured": (clusters.measured, "scaling"),
    "scaling_simulated": (clusters.simulated, "scaling"),
    "overlap": (clusters.overlap, "overlap"),
    "play_frames": (frames.frames, "play"),
    "dream_steady": (rounds.scores, "dreamt-rounds-steady"),
    "doom_rounds": (rounds.scores, "rounds"),
    "round_variants": (rounds.variants, "round_variants"),
    "doom_stages": (tables.stages, "takecover"),
    "doom_maker": (tables.maker, "takecover"),
    "engines": (tables.engines, "takecover_engines"),
    "throughput": (tables.throughput, "throughput"),
    "hostile": (tables.hostile, "hostile"),
    "parity": (tables.parity, "carracing_parity"),
    "speed": (tables.speed, "carracing_speed"),
    "encoders": (models.encoders, "encoders"),
    "dynamics": (models.dynamics, "dynamics"),
    "probe": (models.probe, "probe"),
    "calibration": (models.calibration, "calibration"),
    "vision": (models.vision, "vision"),
    "generalisation": (models.generalisation, "generalisation"),
    "dream_speed": (models.dream_speed, "dream_speed"),
}
"""Who writes a region, from which result."""

BY_TABLE: dict[str, tuple[Callable[[Any, str], str], tuple[str, ...]]] = {
    "baselines": (model_free.baselines, ("environment", "learned")),
    "exploration": (explorations.exploration, ("plain", "television")),
}
"""Result -> who writes a region of each of its tables, and the tables."""

DOOM_DATA = {
    "A: 1,800 episodes of random actions, held for 1 to 10 steps each": "takecover-first",
    "B: the same episodes; VAE trained again": "takecover-again",
    "C: those, and 400 episodes of the agent of row B": "takecover-bootstrapped",
    "D: 1,800 episodes of persistent random actions (bootstrap run)": "takecover-bootstrap",
    "E: those, and 400 episodes of the agent of row D": "takecover-mixed",
    "F: 10,000 episodes of persistent random actions, each held for four frames (shipped agent)": (
        "takecover"
    ),
}
"""Training data of the agents of Take Cover, in their order, and the result of each."""

QUICK_MODELS = {
    "`conv_vae` and `mdn_rnn`, the paper's: the published run": "quick",
    "the same, on the machine of the rows below": "quick-again",
    "`rnn.model=gru`": "quick-gru",
    "`rnn.model=transformer`": "quick-transformer",
    "`vae.encoder=resnet`": "quick-resnet",
    "`vae.encoder=conv3d`": "quick-conv3d",
}
"""Pairs of models of ``preset=quick``, and the result of each."""


class Seeds(NamedTuple):
    """Runs that differ in the seed alone."""

    names: tuple[str, ...]
    """Of their results, seed 1 first."""
    failed: float | None = None
    """The return below which an episode counts as failed."""
    second: bool = False
    """Whether each agent was evaluated on other episodes too: the result ``NAME-second``."""


SEEDS = {
    "laptop_seeds": Seeds(("laptop", "laptop-2", "laptop-3"), 700, second=True),
    "quick_seeds": Seeds(("quick", "quick-2", "quick-3"), 700, second=True),
    "quick_skip_1": Seeds(("quick-skip-1", "quick-skip-1-2", "quick-skip-1-3"), 700, second=True),
    "dream_seeds": Seeds(("dream-1", "dream-2", "dream-3"), 700),
    "fine_tune": Seeds(("fine-tune-1", "fine-tune-2", "fine-tune-3"), 700),
    "doom_seeds": Seeds(("takecover", "takecover-2", "takecover-3")),
}
"""Region -> the runs of its table."""


def main() -> None:
    """Take over what is named, then render."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("paths", nargs="*", type=Path, help="runs and files of figures")
    parser.add_argument("--publish", action="store_true", help="the runs' agent as well")
    options = parser.parse_args()
    for path in options.paths:
        if path.is_dir():
            if (path / ROUNDS).exists():
                write_json(RESULTS / f"{path.name}.json", rounds.taken(path))
            else:
                take_run(path)
            if options.publish:
                publish(path, _result(path.name), RESULTS)
        elif path.name.startswith("study-"):
            take_study(path)
        else:
            name = f"{path.parent.name}.json" if path.name == "rounds.json" else path.name
            shutil.copyfile(path, RESULTS / name)
    render()


if __name__ == "__main__":
    main()
