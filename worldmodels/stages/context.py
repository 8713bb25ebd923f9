"""One command: its configuration and run, the checks before its stages, and their folders."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch

from worldmodels import extras, trackers
from worldmodels.agents import pretrained
from worldmodels.agents.folder import load_config
from worldmodels.agents.registry import build_dynamics, build_encoder
from worldmodels.config.choices import IMPORT, TRAINING, Stage
from worldmodels.config.environments import default_observation
from worldmodels.config.parts import parts
from worldmodels.config.schema import Config, flat, round_config
from worldmodels.config.shipped import environment_of
from worldmodels.envs.engines import check_registered, check_restorable
from worldmodels.envs.observation import ObservationSpec
from worldmodels.errors import ConfigError
from worldmodels.models.controller import CHOICE, SQUASHINGS, squashing
from worldmodels.models.encoder import Encoder
from worldmodels.runs.artifacts import Run
from worldmodels.runs.health import Range
from worldmodels.runs.stage_folder import StageFolder
from worldmodels.runs.tracking import Draw, MetricsLog, Watch, say
from worldmodels.stages.inputs import Inputs, agent_of, check_features, frame_skip_of
from worldmodels.stages.runtime import Runtime
from worldmodels.system.devices import choose_device
from worldmodels.system.disk import unwritable
from worldmodels.training import compiling, launch


@dataclass(frozen=True)
class Context:
    """What a stage works with: configuration, artifacts, device and environment.

    Args:
        config: the whole configuration.
        run: the artifacts of this run.
        published: the folder of the agent that ``base=`` names; see `Inputs`.
        earlier: the rounds before this one; see `Inputs`.
        watch: takes the metrics of the stage of that name; see `MetricsLog`.
        continued: a run whose training of a model is continued; see `Inputs`.
    """

    config: Config
    run: Run
    published: Path | None = None
    earlier: tuple[Run, ...] = ()
    watch: tuple[str, Watch] | None = None
    continued: Run | None = None

    @cached_property
    def runtime(self) -> Runtime:
        """Device, precision, worker processes and environment."""
        return Runtime(self.config)

    @cached_property
    def inputs(self) -> Inputs:
        """The finished artifacts that stages read."""
        return Inputs(self.config, self.run, self.published, self.earlier, self.continued)

    def observation(self) -> ObservationSpec:
        """``env.crop_rows`` and ``env.size``; where they are the environment's default, those of
        the agent of ``model=``."""
        env = self.config.env
        here = ObservationSpec(env.crop_rows, env.size)
        if self.inputs.model is None or self.config.stage in extras.EXPORTING:
            return here
        trained, given = load_config(self.inputs.model), here != default_observation(env.id)
        return here if given or trained.env_id != env.id else trained.observation

    def frame_skip(self) -> int:
        """``env.frame_skip``; where it is null, that of the agent that plays, or 1."""
        config = self.config
        if config.env.frame_skip is None and config.stage not in extras.EXPORTING:
            playing = config.stage in (Stage.evaluate, Stage.watch)
            if self.inputs.model is not None:
                return load_config(self.inputs.model).frame_skip
            if playing and self.run.has("controller"):
                return load_config(agent_of(self.run)).frame_skip
            if playing and self.run.has("baseline"):
                return frame_skip_of(self.run.manifest("baseline"))
        return config.env.frame_skip or 1

    def check(self) -> None:
        """Raise `ConfigError` for what no stage of this command could use, before any begins."""
        self._check_agent()
        for part in parts(self.config):
            self._check_models(part)
            if part.env.squash is not None:
                _check_squash(part.env.squash)
            if part.stage not in extras.WITHOUT_ENV:
                engines = [part.env.engine]
                if part.stage in extras.EVALUATING:
                    engines.append(part.evaluate.engine)
                if part.stage is Stage.watch:
                    engines.append(part.watch.engine)
                for engine in engines:
                    check_registered(Runtime(part).env_spec(engine))
                _check_branches(part)
        if self.config.stage not in (IMPORT, Stage.inspect, Stage.report, *extras.EXPORTING):
            device = choose_device(self.config.device.name)
            launch.check(self.config.trainer, self.config.device.name)
            if self.config.trainer.compile:
                compiling.check(device)
        if self.config.stage not in extras.WITHOUT_ENV:
            self.runtime.connect()
        if self.config.stage is not Stage.inspect:
            reason = unwritable(self.run.root)
            if reason is not None:
                raise ConfigError(
                    f"data={self.config.data}: {self.run.root} cannot be written ({reason}); choose"
                    " another folder"
                )

    def _check_agent(self) -> None:
        """Raise `ConfigError` where a trained agent does not fit the environment."""
        env = self.config.env
        here = ObservationSpec(env.crop_rows, env.size)
        for key, folder in (("model", self.inputs.model), ("base", self.published)):
            if folder is None or (key == "model" and self.config.stage in extras.EXPORTING):
                continue
            config, name = load_config(folder), getattr(self.config, key)
            plays = self.config.stage in (Stage.evaluate, Stage.watch)
            if config.env_id != env.id and (
                (key == "model" and plays) or config.observation != here
            ):
                raise ConfigError(
                    f"{key}={name}: trained for {config.env_id}, env is {env.id};"
                    f" add {environment_of(config.env_id)}"
                )
            skip = env.frame_skip or 1
            if key == "base" and config.frame_skip != skip:
                raise ConfigError(
                    f"base={name}: trained with env.frame_skip={config.frame_skip}, env has {skip};"
                    f" give env.frame_skip={config.frame_skip}"
                )
            if config.observation != here:
                raise ConfigError(
                    f"{key}={name}: trained with {_keys(config.observation)}, env has"
                    f" {_keys(here)}; give {_keys(config.observation)}"
                )

    def _check_models(self, config: Config) -> None:
        """Raise `ConfigError` for models that cannot be built, on the meta device, without memory;
        and for a controller whose features the dynamics model that is trained before it does not
        have."""
        if config.stage not in (*TRAINING, Stage.plan, Stage.sweep):
            return
        with torch.device("meta"):
            encoder = build_encoder(config.vae, config.env.size)
            dynamics = build_dynamics(config.rnn, config.vae.latent_size, action_size=1, other={})
        if config.stage not in (Stage.vae, Stage.rnn):
            check_features(dynamics, config.controller.features)
        if config.stage not in (Stage.rnn, Stage.plan):
            self._check_pretrained(config, encoder)

    def _check_pretrained(self, config: Config, encoder: Encoder) -> None:
        """Raise an error for published weights that training cannot start from: they are missing,
        of another network, or replaced by the encoder of the agent of ``base=``."""
        name = config.vae.pretrained
        if self.published is not None:
            if name is not None:
                raise ConfigError(
                    f"vae.pretrained={name}: training starts from the encoder of the agent"
                    f" base={config.base}; give one of the two"
                )
        elif name is not None:
            first = self.run if self.inputs.bootstrap is None else self.inputs.bootstrap
            if config.stage is Stage.iterate:
                first = Run(self.run.root / "round-1", self.run.base)
            if Inputs(config, first).pretrained_before() is None:
                pretrained.check(encoder, pretrained.find(name))
        elif config.vae.frozen:
            raise ConfigError(
                "vae.frozen=true: the network's weights would stay random; give vae.pretrained, or"
                " vae.frozen=null"
            )

    def begin(
        self, stage: str, inputs: dict[str, str], growable: tuple[str, ...], **groups: object
    ) -> StageFolder:
        """Open the folder of a stage.

        If the command is a sequence of stages and the base run has the same artifact, that one is
        used. A stage that the command names is always made in this run.

        Args:
            stage: its name.
            inputs: ``name -> fingerprint`` of what the artifact is made from.
            growable: see `Run.begin`.
            groups: groups of the configuration that, with inputs and seed, determine the artifact.
        """
        share = self.config.stage.name != stage
        content = flat(seed=self.config.seed, **groups)
        folder = self.run.begin(stage, content, inputs, growable, self.config.overwrite, share)
        folder.price_per_hour = self.config.price_per_hour
        if folder.unlike is not None:
            say(f"{stage}: {folder.unlike}: making it anew")
        self.note_fetched(folder)
        if folder.complete:
            say(f"{stage}: done before ({folder.path}, {folder.record['fingerprint']})")
        return folder

    def note_fetched(self, folder: StageFolder) -> None:
        """Write to the manifest of a stage at work which agents on the Hub it may use."""
        if not folder.complete and self.inputs.fetched:
            folder.record["hub"] = self.inputs.fetched

    def tracker(
        self, folder: StageFolder, draw: Draw | None = None, ranges: Iterable[Range] = ()
    ) -> MetricsLog:
        """The metrics of a stage, written in its folder and sent to the configured tracker.

        Args:
            folder: of the stage.
            draw: makes its pictures; see `MetricsLog`.
            ranges: of its figures.
        """
        name = f"{self.run.root.name}/{folder.stage}"
        tracker = trackers.start(self.config.logger, folder.path, name, folder.record)
        made_by = folder.record["made_by"]
        stage, watch = self.watch or ("", None)
        watched = watch if folder.stage == stage else None
        return MetricsLog(folder.path / "metrics.csv", tracker, made_by, draw, ranges, watched)


def _keys(observation: ObservationSpec) -> str:
    """The configuration keys that give these observations."""
    rows = "null" if observation.crop_rows is None else observation.crop_rows
    return f"env.crop_rows={rows} env.size={observation.size}"


def _check_branches(config: Config) -> None:
    """Raise `ConfigError` where a round is to branch off episodes of an environment that cannot."""
    planned = [(config.rollouts.branches, config)]
    if config.stage is Stage.iterate:
        for change in config.iterate.schedule:
            if "branches" in change.get("rollouts", {}):
                number = change["round"]
                planned.append((change["rollouts"]["branches"], round_config(config, number)))
    for branches, part in planned:
        if branches is not None:
            check_restorable(f"rollouts.branches={branches}", Runtime(part).env_spec())


def _check_squash(names: list[str]) -> None:
    try:
        squashing(names)
    except (KeyError, ValueError) as error:
        raise ConfigError(
            f"env.squash: unknown squashing {error}, choose from"
            f" {', '.join(SQUASHINGS)}, or {CHOICE} for each action"
        ) from None
