"""One command: its configuration and run, the checks before its stages, and their folders."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch

from worldmodels import extras, trackers
from worldmodels.agents import pretrained
from worldmodels.agents.registry import build_dynamics, build_encoder
from worldmodels.config.choices import IMPORT, TRAINING, Optimizer, Stage, WorldKind
from worldmodels.config.environments import default_observation
from worldmodels.config.parts import parts
from worldmodels.config.schema import Config, flat, round_config
from worldmodels.config.shipped import environment_of
from worldmodels.config.usage import written
from worldmodels.envs.engines import check_registered, check_restorable
from worldmodels.envs.observation import ObservationSpec
from worldmodels.errors import ConfigError
from worldmodels.models.controller import CHOICE, SQUASHINGS, squashing
from worldmodels.models.dynamics import DynamicsModel
from worldmodels.models.encoder import Encoder
from worldmodels.runs.artifacts import Run
from worldmodels.runs.health import Range
from worldmodels.runs.stage_folder import StageFolder
from worldmodels.runs.tracking import Draw, MetricsLog, Watch, say
from worldmodels.stages.inputs import Inputs, check_features
from worldmodels.stages.runtime import Runtime
from worldmodels.stages.trained import Setting, setting_of_agent, setting_of_player
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

    @cached_property
    def _trained_for(self) -> Setting | None:
        return setting_of_player(self.config, self.run, self.inputs.model)

    def observation(self) -> ObservationSpec:
        """``env.crop_rows`` and ``env.size``; where they are the environment's default, those of
        the agent or baseline that plays."""
        env = self.config.env
        here = ObservationSpec(env.crop_rows, env.size)
        trained, given = self._trained_for, here != default_observation(env.id)
        if trained is None or given or trained.env_id != env.id:
            return here
        return trained.observation

    def frame_skip(self) -> int:
        """``env.frame_skip``; where it is null, that of the agent or baseline that plays, or 1."""
        given, trained = self.config.env.frame_skip, self._trained_for
        if given is None and trained is not None:
            return trained.frame_skip
        return given or 1

    def check(self) -> None:
        """Raise `ConfigError` for what no stage of this command could use, before any begins."""
        if self.config.stage is Stage.all and self.config.iterate.schedule:
            raise ConfigError(
                "stage=all: iterate.schedule changes later rounds, which this stage does not have;"
                " use stage=iterate, or iterate.schedule=[] for the first round alone"
            )
        if self.config.stage is Stage.plan and self.config.trainer.grouped:
            raise ConfigError(
                "stage=plan: measures training in one process; give trainer.devices=1"
                " trainer.nodes=1 trainer.strategy=auto"
            )
        self._check_agent()
        self._check_episodes()
        for part in parts(self.config):
            self.check_models(part)
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
        _check_rounds(self.config)
        if self.config.stage not in (IMPORT, Stage.inspect, Stage.report, *extras.EXPORTING):
            device = choose_device(self.config.device.name)
            launch.check(self.config.trainer, self.config.device.name)
            if self.config.trainer.compile:
                compiling.check(device)
        if self.config.stage not in extras.WITHOUT_ENV:
            choose_device(self.config.workers.device.name, "workers.device")
            self.runtime.connect()
        if self.config.stage is not Stage.inspect:
            reason = unwritable(self.run.root)
            if reason is not None:
                raise ConfigError(
                    f"data={self.config.data}: {self.run.root} cannot be written ({reason}); choose"
                    " another folder"
                )

    def _check_agent(self) -> None:
        """Raise `ConfigError` where a trained agent or baseline does not fit the environment."""
        env = self.config.env
        here = ObservationSpec(env.crop_rows, env.size)
        played = "run" if self.inputs.model is None else "model"
        settings = {played: self._trained_for}
        if self.published is not None:
            settings["base"] = setting_of_agent(self.published)
        plays = self.config.stage in (Stage.evaluate, Stage.watch)
        for key, trained in settings.items():
            if trained is None:
                continue
            name = getattr(self.config, key)
            if trained.env_id != env.id and (
                (key == played and plays) or trained.observation != here
            ):
                raise ConfigError(
                    f"{key}={name}: trained for {trained.env_id}, env is {env.id};"
                    f" add {environment_of(trained.env_id)}"
                )
            skip = env.frame_skip or 1
            if key == "base" and trained.frame_skip != skip:
                raise ConfigError(
                    f"base={name}: trained with env.frame_skip={trained.frame_skip}, env has"
                    f" {skip}; give env.frame_skip={trained.frame_skip}"
                )
            if trained.observation != here:
                raise ConfigError(
                    f"{key}={name}: trained with {_keys(trained.observation)}, env has"
                    f" {_keys(here)}; give {_keys(trained.observation)}"
                )

    def _check_episodes(self) -> None:
        """Raise `ConfigError` where a controller or a baseline in the learned model is trained with
        other frames or another frame skip than the episodes that its models are trained on."""
        modelled = self.config.controller.world is WorldKind.dream
        trains = self.config.stage is Stage.controller or (
            self.config.stage is Stage.baseline and modelled
        )
        if not trains or not self.run.has("rollouts"):
            return
        recorded, env = self.run.manifest("rollouts")["config"], self.config.env
        for key in ("crop_rows", "size", "frame_skip"):
            now = getattr(env, key)
            # Imported episodes have no frame skip, those of an older version not every key.
            before = recorded.get(f"env.{key}", now)
            if key == "frame_skip":
                before, now = before or 1, now or 1
            if before != now:
                raise ConfigError(
                    f"env.{key}={written(now)}: the episodes of {self.run.locate('rollouts')} have"
                    f" env.{key}={written(before)}; give the preset and the keys of their run"
                )

    def check_models(self, config: Config) -> None:
        """Raise `ConfigError` for models that cannot be built, on the meta device, without memory;
        and for a controller whose features the dynamics model that is trained before it does not
        have.

        Args:
            config: of the command, or of a part of its work.
        """
        if config.stage not in (*TRAINING, Stage.plan, Stage.sweep):
            return
        encoder, dynamics = _outlines(config)
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
        # The stage whose metrics a search follows has to report them: it is made here.
        followed = self.watch is not None and self.watch[0] == stage
        share = self.config.stage.name != stage and not followed
        content = flat(seed=self.config.seed, **groups)
        folder = self.run.begin(stage, content, inputs, growable, self.config.overwrite, share)
        folder.price_per_hour = self.config.price_per_hour
        if folder.unlike is not None:
            say(f"{stage}: {folder.unlike}: making it anew")
        self.note_fetched(folder)
        self._note_device(folder)
        if folder.complete:
            say(f"{stage}: done before ({folder.path}, {folder.record['fingerprint']})")
        return folder

    def note_fetched(self, folder: StageFolder) -> None:
        """Write to the manifest of a stage at work which agents on the Hub it may use."""
        if not folder.complete and self.inputs.fetched:
            folder.record["hub"] = self.inputs.fetched

    def _note_device(self, folder: StageFolder) -> None:
        """Write to the manifest of a stage at work what its networks are computed on."""
        if folder.complete:
            return
        runtime, config = self.runtime, self.config.controller
        searching = folder.stage == "controller" and config.optimizer is Optimizer.cma_es
        device = runtime.device
        if searching and config.world is WorldKind.dream:
            device = runtime.dream_device
        elif searching or folder.stage in ("rollouts", "evaluate"):
            device = runtime.real_device
        folder.record["device"] = runtime.in_words(device)

    def tracker(
        self, folder: StageFolder, draw: Draw | None = None, ranges: Iterable[Range] = ()
    ) -> MetricsLog:
        """The metrics of a stage, written in its folder and sent to the configured tracker.

        Args:
            folder: of the stage, or one below it for a model that the stage trains beside its own.
            draw: makes its pictures; see `MetricsLog`.
            ranges: of its figures.
        """
        # Of a round "rounds/round-1/rnn", of another model of the stage "rounds/rnn/member_2".
        name = Path(os.path.relpath(folder.path, self.config.data)).as_posix()
        tracker = trackers.start(self.config.logger, folder.path, name, folder.record)
        made_by = folder.record["made_by"]
        stage, watch = self.watch or ("", None)
        watched = watch if folder.stage == stage else None
        return MetricsLog(folder.path / "metrics.csv", tracker, made_by, draw, ranges, watched)


def _outlines(config: Config) -> tuple[Encoder, DynamicsModel]:
    """Encoder and dynamics model on the meta device; raises `ConfigError` where a configuration
    gives none."""
    with torch.device("meta"):
        encoder = build_encoder(config.vae, config.env.size)
        return encoder, build_dynamics(config.rnn, config.vae.latent_size, action_size=1, other={})


def _check_rounds(config: Config) -> None:
    """Raise `ConfigError` for models of later rounds that cannot be built."""
    if config.stage not in (Stage.iterate, Stage.plan):
        return
    for change in config.iterate.schedule:
        number = change["round"]
        try:
            _outlines(round_config(config, number))
        except ConfigError as error:
            where = f"iterate.schedule from round {number} on"
            raise ConfigError(f"with the values of {where}: {error}") from None


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
