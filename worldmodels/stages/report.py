"""Stage ``report``: one self-contained page of what the run did. Always made anew."""

from __future__ import annotations

from pathlib import Path

from worldmodels.agent import load_agent
from worldmodels.artifacts import Run, fingerprint_file
from worldmodels.data.episodes import EpisodeSet
from worldmodels.errors import ArtifactError
from worldmodels.files import atomic_path
from worldmodels.integrity import listed, verified
from worldmodels.model_files import load_dynamics, load_encoder
from worldmodels.reporting.page import render
from worldmodels.reporting.parting import Parting, part
from worldmodels.reporting.pictures import DreamStrip, dream_strip
from worldmodels.reporting.records import read_scores
from worldmodels.reporting.scores import IN_ITS_DREAM
from worldmodels.stages.context import Context
from worldmodels.tracking import say

STAGES = ("rollouts", "vae", "rnn", "controller", "evaluate")


def run(context: Context) -> None:
    """Write ``index.html`` from the manifests, metrics and pictures of the finished stages."""
    finished = {stage: context.run.locate(stage) for stage in STAGES if context.run.has(stage)}
    if (scout := context.scout) is not None:
        finished |= {f"scout/{s}": scout.locate(s) for s in STAGES if scout.has(s)}
    if not finished:
        raise ArtifactError(
            f"{context.run.root}: no stage of it is finished, so there is nothing to report:"
            f" first run python -m worldmodels stage=all run={context.run.name}"
        )
    strip = _strip(context, finished) if finished.keys() >= {"rollouts", "vae", "rnn"} else None
    parting = _part(context) if "evaluate" in finished else None
    page = render(context.run.root.name, finished, strip, parting, _dreamers(context))
    with context.run.begin("report", {}, {}, fresh=True) as folder:
        path = folder.path / "index.html"
        with atomic_path(path) as temporary:
            temporary.write_text(page)
        folder.finish(fingerprint_file(path))
    say(f"report: wrote {path}")


def _strip(context: Context, finished: dict[str, Path]) -> DreamStrip:
    """A validation episode and what V and M make of it."""
    episodes = context.episodes()
    _, validation = episodes.split(context.config.rnn.validation_fraction, context.config.seed)
    encoder = load_encoder(verified(finished["vae"], "vae.safetensors"))
    dynamics = load_dynamics(verified(finished["rnn"], "rnn.safetensors"))
    return dream_strip(encoder, dynamics, episodes, int(validation[0]))


def _part(context: Context) -> Parting | None:
    """The judged agent's episodes and their dreams; None without episodes."""
    files = listed(context.run.locate("evaluate"), "episodes/shard-*.h5")
    if not files:
        return None
    agent = load_agent(context.agent()[0])
    return part(agent.encoder, agent.dynamics, EpisodeSet.listed(files))


def _dreamers(context: Context) -> dict[str, Path]:
    """This run and those in its folder, as far as their controllers come from its M's dreams."""
    run = context.run
    if context.published is None and not run.has("rnn"):
        return {}
    models = context.models()
    folders = [run.root, *sorted(run.root.glob("*/"))]  # none where the run has no folder yet
    found = {}
    for folder in folders:
        other = Run(folder)
        if not (other.has("controller") and other.has("evaluate")):
            continue
        made = other.manifest("controller")
        scores = read_scores(folder / "evaluate" / "scores.json")
        if models.inputs.items() <= made["inputs"].items() and IN_ITS_DREAM in scores:
            found[folder.name] = folder
    return found
