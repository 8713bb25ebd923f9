"""An agent as a folder for the Hugging Face Hub, with the card and the picture of its page."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from worldmodels.agents.folder import Agent, fingerprint, read_agent
from worldmodels.agents.model_files import load_first_latents
from worldmodels.agents.registry import name_of
from worldmodels.errors import DISTRIBUTION
from worldmodels.export.hub import CARD, CONFIG, PICTURE, copy_agent
from worldmodels.files.atomic import atomic_path, write_json
from worldmodels.reporting.card import Evaluated, Trained, card
from worldmodels.reporting.pictures import dream_sheet, save_picture
from worldmodels.reporting.records import read_record, read_scores
from worldmodels.runs.artifacts import Run
from worldmodels.runs.manifests import MANIFEST
from worldmodels.runs.tracking import say
from worldmodels.stages.context import Context

FORMAT = 1
"""Of ``config.json``."""
_TRAINING = ("rollouts", "vae", "rnn", "controller")


@dataclass(frozen=True)
class Evaluation:
    """A finished stage ``evaluate`` of the agent.

    Args:
        folder: of the stage.
        fingerprint: of the artifact.
    """

    folder: Path
    fingerprint: str


def evaluation_of(run: Run, inputs: dict[str, str]) -> Evaluation | None:
    """The evaluation of an agent in a run, if there is one.

    Args:
        run: that may have evaluated the agent.
        inputs: the fingerprint of the agent.
    """
    if run.has("evaluate"):
        manifest = run.manifest("evaluate")
        if manifest["inputs"] == inputs:
            return Evaluation(run.locate("evaluate"), manifest["fingerprint"])
    say(
        "export: the card has no scores, because this run has none of this agent; run"
        f" stage=evaluate run={run.name} first"
    )
    return None


def write_hub(
    context: Context, folder: Path, source: Path, evaluation: Evaluation | None
) -> list[str]:
    """Write an agent with ``config.json``, ``README.md`` and ``dream.png``.

    Args:
        context: of the command.
        folder: to write to.
        source: folder of the agent.
        evaluation: of the agent, for the scores.

    Returns:
        the names of the files, first ``config.json``.

    Raises:
        ArtifactError: a file is missing or damaged.
    """
    agent, config = read_agent(source), context.config
    files = copy_agent(source, folder)
    first = load_first_latents(source / "rnn.safetensors")
    temperature = config.controller.evaluation_temperature
    save_picture(folder / PICTURE, dream_sheet(agent, first, temperature))
    name = Path(config.model or config.run).name
    own = context.inputs.model is None and context.run.has("controller")
    trained = _trained(context.run) if own else []
    evaluated = None if evaluation is None else _evaluated(evaluation)
    text = card(name, agent, trained, evaluated, temperature)
    with atomic_path(folder / CARD) as temporary:
        temporary.write_text(text, encoding="utf-8")
    write_json(folder / CONFIG, _description(agent, source, context.run, trained))
    return [CONFIG, CARD, PICTURE, *files]


def _description(agent: Agent, source: Path, run: Run, trained: list[Trained]) -> dict[str, Any]:
    """The content of ``config.json``."""
    stages = [one.stage for one in trained]
    return {
        "format": FORMAT,
        "library_name": DISTRIBUTION,
        "environment": agent.config.env_id,
        "agent": fingerprint(source),
        "encoder": {"class": name_of(agent.encoder), **agent.encoder.sizes},
        "dynamics": {"class": name_of(agent.dynamics), **agent.dynamics.sizes},
        "training": {stage: run.manifest(stage)["config"] for stage in stages},
    }


def _trained(run: Run) -> list[Trained]:
    """The stages that made the agent of a run."""
    found = []
    for stage in _TRAINING:
        if run.has(stage):
            record = read_record(run.locate(stage) / MANIFEST)
            found.append(Trained(stage, record.group("config").count("seed"), record))
    return found


def _evaluated(evaluation: Evaluation) -> Evaluated:
    scores = read_scores(evaluation.folder / "scores.json")
    return Evaluated(list(scores.values()), read_record(evaluation.folder / MANIFEST))
