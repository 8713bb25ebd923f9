"""Stage ``report``: one self-contained HTML page of a run, and its answers to the reproducibility
checklist. Every command writes them again."""

from __future__ import annotations

from pathlib import Path

from worldmodels.agents.folder import fingerprint as agent_fingerprint
from worldmodels.agents.folder import read_agent
from worldmodels.agents.model_files import load_dynamics, load_encoder
from worldmodels.config.choices import Stage
from worldmodels.config.limits import run_folder
from worldmodels.data.episodes import EpisodeSet
from worldmodels.errors import ArtifactError, ConfigError
from worldmodels.files.atomic import atomic_path
from worldmodels.reporting.figures import Figures
from worldmodels.reporting.open_loop import OpenLoopResult, open_loop
from worldmodels.reporting.page import BASELINE, STAGES, render
from worldmodels.reporting.pictures import EpisodeComparison, compare_episode
from worldmodels.reporting.records import read_record, read_scores
from worldmodels.reporting.reproducibility import CHECKLIST, render_checklist
from worldmodels.reporting.rounds import ROUNDS, round_folders
from worldmodels.reporting.scores import AGENT_IN_DREAM
from worldmodels.runs.artifacts import Run
from worldmodels.runs.bases import recorded_base
from worldmodels.runs.integrity import fingerprint_file, listed, verified
from worldmodels.runs.manifests import read_manifest
from worldmodels.runs.tracking import say
from worldmodels.stages.context import Context
from worldmodels.stages.trained import TRAINED, agent_of, frame_skip_of


def run(context: Context) -> None:
    """Write ``index.html`` from the manifests, metrics and pictures of the finished stages, the
    charts as files below ``figures/``, and ``reproducibility.html``.

    Raises:
        ArtifactError: no stage is finished, or a file of a finished stage is damaged; or a run of
            ``compare=`` is not evaluated.
        ConfigError: ``compare=`` names a run that is not there, or one of another environment.
    """
    finished = _finished(context.run, context.inputs.bootstrap)
    if not finished:
        newest = context.run.newest_round(*reversed(STAGES))
        remedy = (
            "first run stage=all with the same run, preset and keys"
            if newest is None
            else f"the rounds of stage=iterate are runs of their own: give {newest}"
        )
        raise ArtifactError(
            f"{context.run.root}: no stage of this run is finished, so there is nothing to report;"
            f" {remedy}"
        )
    compared = _compared(context)
    modelled = finished.keys() >= {"rollouts", "vae", "rnn"}
    with context.run.begin("report", {}, {}, overwrite=True) as folder:
        folder.price_per_hour = context.config.price_per_hour
        figures = Figures()
        run_name = context.run.root.name
        page = render(
            run_name,
            finished,
            _comparison(context, finished) if modelled else None,
            _open_loop(context) if "evaluate" in finished else None,
            _dream_trained(context, finished),
            context.config.calibration,
            compared,
            figures,
        )
        figures.write(folder.path)
        path = folder.path / "index.html"
        pages = {path: page, path.with_name(CHECKLIST): render_checklist(run_name, finished)}
        for place, content in pages.items():
            with atomic_path(place) as temporary:
                temporary.write_text(content)
        folder.finish(fingerprint_file(path))
    say(f"report: wrote {path}")


def _finished(run: Run, bootstrap: Run | None) -> dict[str, Path]:
    """Stage -> folder of the finished stages of a run, and of its bootstrap run.

    A stage of this run or of its base is left out where it was made from other artifacts than the
    run has now: the base's evaluation is not that of a controller that this run has of its own.
    """
    finished: dict[str, Path] = {}
    trained = run.nearest(*TRAINED)
    for stage in (*STAGES[:-1], BASELINE, STAGES[-1]):
        if (stage in TRAINED and stage != trained) or not run.has(stage):
            continue
        folder = run.locate(stage)
        if folder != run.folder(stage):
            if _fits(run, folder, finished, trained):
                finished[stage] = folder
        elif _present(run, folder, finished, trained):
            finished[stage] = folder
        else:
            say(
                f"report: {stage} is left out, since it was made from other artifacts than the run"
                f" has now; make it again by stage={stage} overwrite=true"
            )
    if bootstrap is not None:
        finished |= {f"bootstrap/{s}": bootstrap.locate(s) for s in STAGES if bootstrap.has(s)}
    return finished


def _fits(run: Run, folder: Path, finished: dict[str, Path], trained: str | None) -> bool:
    """Whether a stage of the base, in `folder`, was made from the `finished` ones of this run."""
    if folder.name == STAGES[-1]:
        return trained in finished and finished[trained].parent == folder.parent
    inputs = _made_from(folder)
    return all(
        stage in finished and run.fingerprint(stage) == inputs[stage]
        for stage in STAGES
        if stage in inputs
    )


def _made_from(folder: Path) -> dict[str, str]:
    """The inputs of a stage that are artifacts of its own run: the controller that collected
    episodes is that of another, the bootstrap run or the round before."""
    inputs: dict[str, str] = read_manifest(folder)["inputs"]
    collected = folder.name == "rollouts"
    return {key: inputs[key] for key in inputs if not (collected and key == "controller")}


def _present(run: Run, folder: Path, finished: dict[str, Path], trained: str | None) -> bool:
    """Whether a stage of this run, in `folder`, was made from what the run has now, as far as that
    is still there."""
    inputs = _made_from(folder)
    current = {
        stage: run.fingerprint(stage)
        for stage in (*STAGES, BASELINE)
        if stage in inputs and run.has(stage)
    }
    if "agent" in inputs and trained == "controller" and run.has(trained):
        current["agent"] = agent_fingerprint(agent_of(run))
    if not current.items() <= inputs.items():
        return False
    scored = folder.name == STAGES[-1] and trained is not None and run.has(trained)
    return not scored or trained in finished


def _comparison(context: Context, finished: dict[str, Path]) -> EpisodeComparison:
    """The first validation episode beside its reconstructions and predictions."""
    episodes = context.inputs.episodes()
    _, validation = episodes.split(context.config.rnn.validation_fraction, context.config.seed)
    encoder = load_encoder(verified(finished["vae"], "vae.safetensors"))
    dynamics = load_dynamics(verified(finished["rnn"], "rnn.safetensors"))
    return compare_episode(encoder, dynamics, episodes, int(validation[0]))


def _open_loop(context: Context) -> OpenLoopResult | None:
    """Open-loop predictions of the evaluated agent's episodes; None where none were recorded, and
    of a baseline."""
    files = listed(context.run.locate("evaluate"), "episodes/shard-*.h5")
    alone = context.run.nearest(*TRAINED) == BASELINE and context.inputs.model is None
    if not files or alone:
        return None
    agent = read_agent(context.inputs.agent()[0])
    skip = frame_skip_of(context.run.manifest("evaluate"))
    return open_loop(agent.encoder, agent.dynamics, EpisodeSet.listed(files), skip)


def _compared(context: Context) -> dict[str, dict[str, Path]]:
    """Name -> stage -> folder of this run and of those of ``compare=``; empty if it names none."""
    config = context.config
    if config.stage is not Stage.report or not config.compare:
        return {}
    runs = {context.run.name: context.run}
    for name in config.compare:
        root = run_folder(config, "compare", name)
        if root in [run.root for run in runs.values()]:
            raise ConfigError(f"compare={name}: names a run twice; name each run once")
        if not root.is_dir():
            raise ConfigError(
                f"compare={name}: there is no such run in {config.data}; name a run there"
            )
        runs[name] = Run(root, recorded_base(Path(config.data), root), name)
    folders = {
        name: {"evaluate": run.locate("evaluate", "run" if run is context.run else "compare")}
        for name, run in runs.items()
    }
    envs = {
        name: read_record(found["evaluate"] / "manifest.json").group("config").text("env.id")
        for name, found in folders.items()
    }
    for name, env in envs.items():
        if env != envs[context.run.name]:
            raise ConfigError(
                f"compare={name}: evaluated in {env}, {context.run.name} in"
                f" {envs[context.run.name]}; compare runs of one environment"
            )
    for name, run in runs.items():
        inner = run.within("bootstrap", "bootstrap")
        folders[name] |= _finished(run, inner if inner.root.is_dir() else None)
        if (run.root.parent / ROUNDS).is_file():
            folders[name] |= round_folders(run.root, Path(config.data))
    return folders


def _dream_trained(context: Context, finished: dict[str, Path]) -> dict[str, Path]:
    """Name -> folder of the runs whose controllers were trained in this run's dynamics model.

    Searches this run and the runs in its folder.
    """
    run = context.run
    if "rnn" not in finished and (context.published is None or run.has("rnn")):
        return {}
    models = context.inputs.models()
    folders = [run.root, *sorted(run.root.glob("*/"))]
    found = {}
    for folder in folders:
        other = Run(folder)
        if not (other.has("controller") and other.has("evaluate")):
            continue
        manifest = other.manifest("controller")
        scores = read_scores(folder / "evaluate" / "scores.json")
        if models.fingerprints.items() <= manifest["inputs"].items() and AGENT_IN_DREAM in scores:
            found[folder.name] = folder
    return found
