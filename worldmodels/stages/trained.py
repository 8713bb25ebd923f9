"""What a run has trained that acts, an agent or a baseline, and the environment of its training."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from worldmodels.agents.folder import load_config
from worldmodels.config.choices import Stage
from worldmodels.config.schema import Config
from worldmodels.envs.observation import ObservationSpec
from worldmodels.extras import EXPORTING
from worldmodels.runs.artifacts import Run
from worldmodels.runs.integrity import listed, verify

TRAINED = ("controller", "baseline")
"""Stages. A run with both has the controller as its agent."""


class Setting(NamedTuple):
    """The environment in which an agent or a baseline was trained.

    Args:
        env_id: of the environment.
        observation: how frames are made of its pictures.
        frame_skip: steps of the simulator for each step.
    """

    env_id: str
    observation: ObservationSpec
    frame_skip: int


def setting_of_agent(folder: Path) -> Setting:
    """That of the agent in `folder`; raises `ArtifactError` where its configuration is damaged."""
    config = load_config(folder)
    return Setting(config.env_id, config.observation, config.frame_skip)


def setting_of_player(config: Config, run: Run, model: Path | None) -> Setting | None:
    """That of the agent or baseline that a stage plays with.

    Args:
        config: with the stage.
        run: whose agent or baseline plays in ``stage=evaluate`` and ``stage=watch``, if it has one.
        model: the folder of the agent of ``model=``, which plays instead in any stage that takes
            it.

    Returns:
        None where nothing plays, or nothing is there yet.

    Raises:
        ArtifactError: a file is missing or damaged.
    """
    if config.stage in EXPORTING:
        return None
    if model is not None:
        return setting_of_agent(model)
    trained = run.nearest(*TRAINED)
    playing = config.stage in (Stage.evaluate, Stage.watch)
    if not playing or trained is None or not run.has(trained):
        return None
    if trained == "controller":
        return setting_of_agent(agent_of(run))
    made, env = run.manifest(trained), config.env
    skip, found = frame_skip_of(made), made["config"]
    if "env.id" not in found:  # it was trained in the learned model
        return Setting(env.id, ObservationSpec(env.crop_rows, env.size), skip)
    observation = ObservationSpec(found["env.crop_rows"], found["env.size"])
    return Setting(found["env.id"], observation, skip)


def frame_skip_of(manifest: dict[str, Any]) -> int:
    """Steps of the simulator for each of a baseline's, which its stage's manifest says."""
    return round(manifest["config"].get("env.frame_skip") or 1)  # an older version wrote none


def agent_of(run: Run) -> Path:
    """The folder of the agent that a run's controller stage made, its files verified.

    Raises:
        ArtifactError: the stage is not finished, or a file is damaged.
    """
    folder = run.locate("controller")
    for file in listed(folder, "agent/*"):
        verify(file)
    return folder / "agent"
