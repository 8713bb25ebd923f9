"""Stage ``report``: one self-contained page of what the run did. Always made anew."""

from __future__ import annotations

from pathlib import Path

from worldmodels.agent import load_memory, load_vision
from worldmodels.artifacts import atomic_path, fingerprint_file
from worldmodels.reporting.page import render
from worldmodels.reporting.pictures import DreamStrip, dream_strip
from worldmodels.stages.context import Context
from worldmodels.tracking import say

STAGES = ("rollouts", "vae", "rnn", "controller", "evaluate")


def run(context: Context) -> None:
    """Write ``index.html`` from the manifests, metrics and pictures of the finished stages."""
    finished = {stage: context.run.locate(stage) for stage in STAGES if context.run.has(stage)}
    if (scout := context.scout) is not None:
        finished |= {f"scout/{s}": scout.locate(s) for s in STAGES if scout.has(s)}
    with context.run.begin("report", {}, {}, fresh=True) as folder:
        strip = _strip(context, finished) if finished.keys() >= {"rollouts", "vae", "rnn"} else None
        path = folder.path / "index.html"
        with atomic_path(path) as temporary:
            temporary.write_text(render(context.run.root.name, finished, strip))
        folder.finish(fingerprint_file(path))
    say(f"report: wrote {path}")


def _strip(context: Context, finished: dict[str, Path]) -> DreamStrip:
    """A validation episode and what V and M make of it."""
    episodes = context.episodes()
    _, validation = episodes.split(context.config.rnn.validation_fraction, context.config.seed)
    vision = load_vision(finished["vae"] / "vae.safetensors")
    memory = load_memory(finished["rnn"] / "rnn.safetensors")
    return dream_strip(vision, memory, episodes, int(validation[0]))
