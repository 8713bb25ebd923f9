"""What the stage ``evaluate`` scores: an agent, or a baseline; and the worlds that it plays in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from worldmodels import extras
from worldmodels.agents.folder import Agent, read_agent
from worldmodels.agents.model_files import load_dynamics
from worldmodels.agents.starts_file import STARTS
from worldmodels.config.choices import (
    Features,
    HiddenChoice,
    LatentChoice,
    MemberSampling,
    Objective,
    StartChoice,
    WorldKind,
)
from worldmodels.evolution.fitness import EpisodeSpec, EvalBatch, eval_batches
from worldmodels.models.dynamics import DynamicsModel
from worldmodels.models.encoder import Encoder
from worldmodels.models.features import FeatureSpec
from worldmodels.reporting.calibration import HORIZONS
from worldmodels.runs.integrity import verified
from worldmodels.stages.baseline import POLICY, policy_spec
from worldmodels.stages.context import Context
from worldmodels.stages.inputs import STATE_FEATURES
from worldmodels.stages.trained import TRAINED, frame_skip_of
from worldmodels.worlds.collect import PolicyEpisodes, PolicySource
from worldmodels.worlds.members import SamplingRule
from worldmodels.worlds.specs import DreamWorldSpec, RealWorldSpec

Job = EvalBatch | PolicyEpisodes
"""Plays the episodes of some seeds."""


@dataclass(frozen=True)
class Dream:
    """The learned model in which a player was trained.

    Args:
        world: as workers build it.
        max_steps: time limit of an episode.
    """

    world: DreamWorldSpec
    max_steps: int


@dataclass(frozen=True)
class Shown:
    """Models whose reconstructions and predictions a video shows beside the frames.

    Args:
        encoder: VAE; None: frames alone.
        dynamics: dynamics model; None: no predictions.
    """

    encoder: Encoder | None
    dynamics: DynamicsModel | None


class Player(Protocol):
    """An agent or a baseline."""

    @property
    def real(self) -> RealWorldSpec:
        """The environment, with what the player perceives of it."""
        ...

    @property
    def dream(self) -> Dream | None:
        """The learned model that it was trained in for the task's reward; None without one."""
        ...

    @property
    def shown(self) -> Shown:
        """What its videos show."""
        ...

    def jobs(self, seeds: Sequence[int], num_envs: int, max_steps: int) -> list[Job]:
        """Jobs of at most `num_envs` episodes each, in the order of the seeds."""
        ...


def player_of(context: Context) -> tuple[Player, dict[str, str]]:
    """What ``stage=evaluate`` scores, and the fingerprints of what that is made of: the agent of
    ``model=`` or of this run, or this run's baseline where it has one and no controller of its own.

    Raises:
        ArtifactError: there is neither, or a file is damaged.
        ConfigError: Stable-Baselines3, which a baseline needs, cannot be imported.
    """
    run = context.run
    if context.inputs.model is None and run.nearest(*TRAINED) == "baseline":
        extras.require_import(f"run={run.name}", "stable_baselines3")
        return _baseline(context), {"baseline": run.fingerprint("baseline")}
    folder, inputs = context.inputs.agent()
    agent = read_agent(folder)
    features, dynamics = agent.config.features, folder / "rnn.safetensors"
    engine = context.config.evaluate.engine
    real = context.runtime.real(engine, folder / "vae.safetensors", dynamics, features)
    dream = None
    if context.inputs.model is None and run.has("controller"):
        skip, manifest = agent.config.frame_skip, run.manifest("controller")
        dream = _dream(context, manifest, dynamics, features, folder, skip)
    return _AgentPlayer(agent, real, dream), inputs


def _dream(
    context: Context,
    manifest: dict[str, Any],
    dynamics: Path,
    features: FeatureSpec,
    parts: Path,
    frame_skip: int,
) -> Dream | None:
    """The learned model in which a stage trained for the task's reward; None without one.

    Args:
        context: of the command.
        manifest: of the stage.
        dynamics: file of the dynamics model.
        features: of the player.
        parts: folder of the moments at which episodes begin.
        frame_skip: with which it was trained.
    """
    if manifest["summary"]["world"] != WorldKind.dream.name:
        return None
    if manifest["summary"].get("objective", Objective.reward.name) != Objective.reward.name:
        return None  # its returns there are of another reward, which the environment has none of
    config = manifest["config"]
    rule = SamplingRule(
        # An older version had one member, and neither key.
        config.get("controller.member_sampling") != MemberSampling.episode.name,
        config.get("controller.pessimism", 0.0),
        config.get("controller.sampled_termination", False),
        frame_skip,
    )
    recorded = config.get("controller.starts") == StartChoice.recorded.name
    temperature = config.get("controller.final_temperature")  # an older version had none
    temperature = config["controller.temperature"] if temperature is None else temperature
    starts = parts / STARTS if recorded else None
    world = context.runtime.dream(dynamics, features, temperature, rule, starts)
    return Dream(world, config["controller.max_steps"])


@dataclass(frozen=True)
class _AgentPlayer:
    agent: Agent
    real: RealWorldSpec
    dream: Dream | None

    @property
    def shown(self) -> Shown:
        dynamics = self.agent.dynamics if self.agent.config.features.state else None
        return Shown(self.agent.encoder, dynamics)

    def jobs(self, seeds: Sequence[int], num_envs: int, max_steps: int) -> list[Job]:
        # Comparable where episodes of the learned model begin with first frames too.
        compared = self.dream is not None and self.dream.world.starts is None
        horizons = HORIZONS if compared else ()
        spec = EpisodeSpec(num_envs, max_steps, self.agent.config.controller, horizons=horizons)
        return [*eval_batches(self.agent.parameters[None], seeds, spec)]


@dataclass(frozen=True)
class _BaselinePlayer:
    source: PolicySource
    real: RealWorldSpec
    dream: Dream | None
    shown: Shown = Shown(None, None)

    def jobs(self, seeds: Sequence[int], num_envs: int, max_steps: int) -> list[Job]:
        return [
            PolicyEpisodes(tuple(seeds[i : i + num_envs]), max_steps, self.source)
            for i in range(0, len(seeds), num_envs)
        ]


def _baseline(context: Context) -> _BaselinePlayer:
    """The baseline of this run, as its manifest describes it."""
    from worldmodels.baselines.policy import BaselinePolicy

    manifest, engine = context.run.manifest("baseline"), context.config.evaluate.engine
    folder = context.run.locate("baseline")
    path, bfloat16 = verified(folder, POLICY), context.runtime.real_bfloat16
    if manifest["summary"]["world"] == WorldKind.real.name:
        spec = policy_spec(context, manifest["config"], None, bfloat16)
        return _BaselinePlayer(BaselinePolicy(path, spec), context.runtime.real(engine), None)
    models, features = context.inputs.models(), _features(manifest["config"])
    dynamics = load_dynamics(models.dynamics)
    size = features.size(dynamics.latent_size, dynamics)
    source = BaselinePolicy(path, policy_spec(context, manifest["config"], size, bfloat16))
    real = context.runtime.real(engine, models.encoder, models.dynamics, features)
    dream = _dream(context, manifest, models.dynamics, features, folder, frame_skip_of(manifest))
    return _BaselinePlayer(source, real, dream)


def _features(config: dict[str, Any]) -> FeatureSpec:
    """The features that a baseline of the learned model observes."""
    return FeatureSpec(
        state=STATE_FEATURES[Features[config["controller.features"]]],
        sampled=config["controller.latent"] == LatentChoice.sampled.name,
        updated=config["controller.hidden"] == HiddenChoice.updated.name,
    )
