"""The report of a run: one HTML page that needs no other file.

The texts are in ``templates/report.html``; this module reads the values that it shows. Only charts,
which matplotlib escapes, are passed as markup.
"""

from __future__ import annotations

from pathlib import Path

from worldmodels.config.sections import CalibrationConfig
from worldmodels.files.images import png
from worldmodels.reporting.charts import Chart, Drawn, draw
from worldmodels.reporting.comparison import COMPARISON_HEADER, compare_runs
from worldmodels.reporting.dots import draw_dots
from worldmodels.reporting.embedded_videos import LOWEST_HEADER, lowest_rows, videos_of
from worldmodels.reporting.figures import Figures
from worldmodels.reporting.html import fill
from worldmodels.reporting.learning import PAPER_CURVES, against_steps, draw_learning, read_search
from worldmodels.reporting.media import PNG, data_url, embedded
from worldmodels.reporting.model_sections import (
    CLOSED_LOOP_HEADER,
    HORIZON_HEADER,
    OPEN_LOOP_HEADER,
    RELIABILITY_HEADER,
    closed_loop_section,
    held_out_section,
    open_loop_section,
    temperature_section,
)
from worldmodels.reporting.open_loop import OpenLoopResult
from worldmodels.reporting.pictures import EpisodeComparison
from worldmodels.reporting.records import Record, configuration, machine, read_record, read_scores
from worldmodels.reporting.scores import (
    PAPER_SCORES,
    SCORE_HEADER,
    TEMPERATURE_HEADER,
    exploitation_warning,
    score_rows,
)
from worldmodels.reporting.verdict import exploitation_begins, read_calibration
from worldmodels.runs.tracking import read_metrics

STAGES = ("rollouts", "vae", "rnn", "controller", "evaluate")
"""Stages that have a section, whether they are finished or not; a run with a baseline has sections
of finished ones only."""
BASELINE = "baseline"

Values = dict[str, object]
"""Variables of a section in the template."""

_VAE_CHARTS = (
    Chart(
        {"train/reconstruction": "training", "validation/reconstruction": "validation"},
        "step",
        "squared error per frame",
        log=True,
    ),
    Chart(
        {"train/kl": "training", "validation/kl": "validation"}, "step", "KL divergence, nats/frame"
    ),
)
_RNN_CHARTS = (
    Chart(
        {"train/nll": "training", "validation/nll": "validation"},
        "step",
        "NLL, nats per latent dimension",
    ),
    Chart(
        {"train/reward_mse": "training", "validation/reward_mse": "validation"},
        "step",
        "squared error of the reward",
    ),
    Chart(
        {"train/termination_bce": "training", "validation/termination_bce": "validation"},
        "step",
        "cross-entropy of the termination",
    ),
)
_GENERATION_CHART = Chart(
    {
        "fitness/mean": "mean of the generation",
        "selection/mean": "mean of CMA-ES",
        "selection/recorded_best": "largest recorded return",
        "fitness/best": "best of the generation",
        "fitness/worst": "worst of the generation",
    },
    "generation",
    "return",
)
_DISAGREEMENT_CHART = Chart(
    {"dream/disagreement": "disagreement of the members"},
    "generation",
    "standard deviation of the next latent",
)
_NOVELTY_CHART = Chart(
    {
        "fitness/mean": "mean of the generation",
        "novelty/mean": "mean of CMA-ES",
        "fitness/best": "best of the generation",
        "fitness/worst": "worst of the generation",
    },
    "generation",
    "sum of the intrinsic reward",
)
_IMAGINATION_CHARTS = (
    Chart({"train/return": "discounted return"}, "update", "return in the learned model"),
    Chart({"train/reward": "mean reward"}, "update", "reward of a step"),
    Chart(
        {"train/explained_variance": "explained by the critic"},
        "update",
        "share of the variance of returns",
    ),
)
_BASELINE_CHART = Chart(
    {
        "selection/mean": "on the selection seeds",
        "rollout/ep_rew_mean": "in training, latest episodes",
    },
    "steps",
    "return",
)
_LIKELIHOODS = {
    "mdn_rnn": "MDN-RNN",
    "gru": "GRU",
    "transformer": "Transformer",
    "single_gaussian": "MDN-RNN with one Gaussian per dimension",
    "copy_last": "Gaussian around the previous latent",
}


def render(
    name: str,
    folders: dict[str, Path],
    comparison: EpisodeComparison | None,
    open_loop: OpenLoopResult | None = None,
    dream_trained: dict[str, Path] | None = None,
    limits: CalibrationConfig | None = None,
    compared: dict[str, dict[str, Path]] | None = None,
    figures: Figures | None = None,
) -> str:
    """The report as HTML. The section of an unfinished stage states that.

    Args:
        name: of the run.
        folders: stage -> folder, for the finished stages.
        comparison: a validation episode with reconstructions and predictions; None leaves it out.
        open_loop: open-loop predictions of the agent's episodes; None leaves the section out.
        dream_trained: name -> folder of the runs whose controllers were trained in the dream of
            this run's dynamics model; the section is left out where there are none.
        limits: thresholds of a calibrated dynamics model; None for the defaults.
        compared: name -> stage -> folder of this run and of others, for a comparison.
        figures: receives the charts whose files the page links to; `Figures.write` writes them.

    Raises:
        ArtifactError: a file of a finished stage is damaged or of another form.
    """
    figures = Figures() if figures is None else figures
    manifests = {stage: read_record(path / "manifest.json") for stage, path in folders.items()}
    values: Values = {
        "name": name,
        "key_figures": _key_figures(manifests),
        "missing": {s: absence(s, manifests) for s in STAGES if s not in folders},
        "sections": [s for s in STAGES if s in folders or BASELINE not in folders],
        "comparison": None if comparison is None else _comparison(comparison),
        **_model(folders, manifests, limits or CalibrationConfig(), figures),
        "compared": compare_runs(compared, figures) if compared else None,
        "comparison_header": COMPARISON_HEADER,
        **_open_loop(open_loop, figures),
        "temperatures": temperature_section(dream_trained) if dream_trained else None,
        "resources": [_resources(stage, manifest) for stage, manifest in manifests.items()],
        **_provenance(manifests),
    }
    for stage, section in (
        ("evaluate", _evaluate),
        ("rollouts", _rollouts),
        ("vae", _vae),
        ("rnn", _rnn),
        ("controller", _controller),
        (BASELINE, _baseline),
    ):
        if stage in folders:
            values[stage] = section(folders[stage], manifests[stage], figures)
    return fill("report.html", values)


def absence(stage: str, manifests: dict[str, Record]) -> str:
    """Why there is nothing to show of a stage.

    Args:
        stage: its name.
        manifests: of the finished stages, by name.
    """
    inputs = manifests["controller"].texts("inputs") if "controller" in manifests else {}
    if stage in ("rollouts", "vae", "rnn") and "base" in inputs:
        return "This run uses the encoder and the dynamics model of a trained agent."
    return f"The stage '{stage}' of this run is not finished."


def _key_figures(manifests: dict[str, Record]) -> list[tuple[str, str]]:
    """Labels and values for the top of the page."""
    figures = []
    if "evaluate" in manifests:
        for policy, mean in manifests["evaluate"].numbers("summary").items():
            figures.append((f"mean return, {policy}", f"{mean:.0f}"))
    if "rollouts" in manifests:
        frames = manifests["rollouts"].group("summary").number("frames")
        figures.append(("frames recorded", f"{frames:,.0f}"))
    seconds = sum(manifest.number("wall_s") for manifest in manifests.values())
    return [*figures, ("wall time", f"{seconds / 60:.1f} min")]


def _charts(charts: tuple[Chart, ...], folder: Path) -> list[Drawn | None]:
    """The `charts` of the metrics of the stage in `folder`."""
    rows = read_metrics(folder / "metrics.csv")
    return [draw(chart, rows) for chart in charts]


def _evaluate(folder: Path, manifest: Record, figures: Figures) -> Values:
    scores = read_scores(folder / "scores.json")
    config = manifest.group("config")
    papers = PAPER_SCORES.get(config.text("env.id"), [])
    policies = list(scores.values())
    dots = draw_dots("policy", policies, papers[0] if papers else None) if policies else None
    agent = scores.get("agent")
    videos = {} if agent is None else videos_of(folder, agent)
    return {
        "env": config.text("env.id"),
        "engine": config.text("env.engine"),
        "header": SCORE_HEADER,
        "rows": score_rows(policies, papers),
        "warning": exploitation_warning(policies),
        "charts": figures.take("scores", [dots]),
        "videos": videos,
        "lowest_header": LOWEST_HEADER,
        "lowest": [] if agent is None else lowest_rows(agent, videos),
    }


def _rollouts(folder: Path, manifest: Record, figures: Figures) -> Values:
    summary = manifest.group("summary")
    return {
        "summary": (
            f"{summary.number('episodes'):,.0f} episodes, {summary.number('frames'):,.0f} frames,"
            f" engine {summary.text('engine')}, mean return {summary.number('mean_return'):.1f}."
        ),
        "contact_sheet": embedded(folder / "contact_sheet.png", PNG),
    }


def _vae(folder: Path, manifest: Record, figures: Figures) -> Values:
    return {
        "charts": figures.take("vae", _charts(_VAE_CHARTS, folder)),
        "reconstructions": embedded(folder / "reconstructions.png", PNG),
        "prior_samples": embedded(folder / "prior_samples.png", PNG),
    }


def _rnn(folder: Path, manifest: Record, figures: Figures) -> Values:
    likelihoods = manifest.group("summary").numbers("validation_nll")
    return {
        "charts": figures.take("rnn", _charts(_RNN_CHARTS, folder)),
        "likelihoods": [(_model_name(k), f"{nll:.4f}") for k, nll in likelihoods.items()],
    }


def _model_name(key: str) -> str:
    """The name of a model in the table of likelihoods, with the number of a member."""
    name, comma, member = key.partition(", ")
    return f"{_LIKELIHOODS.get(name, name)}{comma}{member}"


def _controller(folder: Path, manifest: Record, figures: Figures) -> Values:
    if manifest.group("summary").optional("updates") is not None:
        charts = _charts(_IMAGINATION_CHARTS, folder)
        return {"charts": figures.take("controller", charts), "gradients": True}
    search = read_search(folder)
    if search.intrinsic:
        charts = [draw(chart, search.rows) for chart in (_NOVELTY_CHART, _DISAGREEMENT_CHART)]
        section = {"gradients": False, "paper": False, "intrinsic": search.intrinsic}
        return {"charts": figures.take("controller", charts), **section}
    curves = {
        "mean of the generation": against_steps(search, "fitness/mean"),
        "mean of CMA-ES": against_steps(search, "selection/mean"),
    }
    charts = [draw_learning(curves, [search.env])]
    charts += [draw(chart, search.rows) for chart in (_GENERATION_CHART, _DISAGREEMENT_CHART)]
    paper = search.env in PAPER_CURVES
    section = {"gradients": False, "paper": paper, "intrinsic": None}
    return {"charts": figures.take("controller", charts), **section}


def _baseline(folder: Path, manifest: Record, figures: Figures) -> Values:
    summary = manifest.group("summary")
    return {
        "summary": (
            f"{summary.text('algorithm')} of Stable-Baselines3,"
            f" {summary.number('steps'):,.0f} steps in the {summary.text('world')} world."
        ),
        "charts": figures.take("baseline", _charts((_BASELINE_CHART,), folder)),
    }


def _open_loop(result: OpenLoopResult | None, figures: Figures) -> Values:
    if result is None:
        return {"open_loop": None}
    section = open_loop_section(result)
    return {"open_loop": section, "open_loop_charts": figures.take("open loop", section.charts)}


def _model(
    folders: dict[str, Path],
    manifests: dict[str, Record],
    limits: CalibrationConfig,
    figures: Figures,
) -> Values:
    """Returns of the controller in both worlds, the calibration of the dynamics model, whether a
    search exploited it, and table headers."""
    found = read_calibration(folders["rnn"]) if "rnn" in folders else None
    held_out = None if found is None else held_out_section(found, limits)
    searched = manifests.get("controller")
    return {
        "closed_loop": closed_loop_section(folders, limits),
        "held_out": held_out,
        "held_out_charts": figures.take("calibration", held_out.charts if held_out else ()),
        "exploitation": None if searched is None else exploitation_begins(searched),
        "closed_loop_header": CLOSED_LOOP_HEADER,
        "horizon_header": HORIZON_HEADER,
        "reliability_header": RELIABILITY_HEADER,
        "open_loop_header": OPEN_LOOP_HEADER,
        "temperature_header": TEMPERATURE_HEADER,
    }


def _comparison(comparison: EpisodeComparison) -> Values:
    image = data_url(png(comparison.image), PNG)
    return {"image": image, "seed": comparison.seed, "times": comparison.times}


def _resources(stage: str, manifest: Record) -> tuple[str, ...]:
    """Stage, wall time, CPU time, peak memory and throughput."""
    rates = [f"{rate:,.0f} {unit}" for unit, rate in manifest.numbers("throughput").items()]
    used = manifest.group("resources")
    peaks = used.numbers("peak_bytes")
    memory = [f"{peak / 1e9:.2f} GB {where}" for where, peak in peaks.items()]
    return (
        stage,
        f"{manifest.number('wall_s'):,.1f} s",
        f"{used.number('cpu_s'):,.1f} s",
        ", ".join(memory),
        ", ".join(rates),
    )


def _provenance(manifests: dict[str, Record]) -> Values:
    """Fingerprints, inputs and commits; versions of the software; the merged configuration."""
    artifacts, software = [], set()
    keys: dict[str, object] = {}
    for stage, manifest in manifests.items():
        inputs = ", ".join(f"{name} {digest}" for name, digest in manifest.texts("inputs").items())
        commit = manifest.text("commit") if manifest.fields.get("commit") else "unknown"
        artifacts.append((stage, manifest.text("fingerprint"), inputs, commit))
        versions = [f"{name} {version}" for name, version in manifest.texts("versions").items()]
        python = f"Python {manifest.text('python')}, {machine(manifest)}"
        software.add(f"{python}; {', '.join(versions)}")
        keys |= configuration(manifest).fields
    return {
        "artifacts": artifacts,
        "software": sorted(software),
        "configuration": sorted((key, str(value)) for key, value in keys.items()),
    }
