"""What every stage is handed: the configuration, the run, and ways to make what it needs."""

from __future__ import annotations

import logging
import warnings
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch

from worldmodels import extras, trackers, untrusted
from worldmodels.agent import AgentConfig, part_fingerprint
from worldmodels.agent import fingerprint as agent_fingerprint
from worldmodels.artifacts import Run, StageFolder
from worldmodels.config import (
    Config,
    Engine,
    Features,
    HiddenChoice,
    LatentChoice,
    Precision,
    Stage,
    flat,
    parts,
    plain,
)
from worldmodels.cores import available_cores
from worldmodels.data.episodes import EpisodeSet
from worldmodels.devices import choose_device, has_bfloat16
from worldmodels.envs.action_spec import ActionSpec, action_spec
from worldmodels.envs.engines import (
    EnvSpec,
    check_registered,
    make_vector_env,
    prepare,
    resolve_engine,
)
from worldmodels.errors import ConfigError
from worldmodels.integrity import Listed, entry, listed, verified, verify
from worldmodels.model_files import load_dynamics, load_encoder
from worldmodels.models.controller import CHOICE, SQUASHINGS, ControllerSpec, squashing
from worldmodels.models.dynamics import DynamicsModel
from worldmodels.models.encoder import Encoder
from worldmodels.models.features import FeatureSpec
from worldmodels.registry import build_dynamics, build_encoder
from worldmodels.shipped import environment_of, require_agent
from worldmodels.storage import unwritable
from worldmodels.tracking import MetricsLog, say
from worldmodels.training import cpu
from worldmodels.workers import Heartbeat, Pool
from worldmodels.worlds.specs import DreamWorldSpec, RealWorldSpec, WorldSpec

if TYPE_CHECKING:
    from lightning_fabric import Fabric


STATE_FEATURES = {Features.z: (), Features.zh: ("h",), Features.zch: ("c", "h")}
"""The parts of the dynamics model's state that each choice of ``controller.features`` has."""


@dataclass(frozen=True)
class Models:
    """The models that a controller is evolved on: those of a run, or those of an agent.

    Args:
        encoder: its file.
        dynamics: file of the dynamics model.
        inputs: their fingerprints, by name.
        latents: file of the episodes that the dynamics model learned from, where there is one; not
            yet verified.
        subspace: file of the directions in which an agent's own controller was found.
    """

    encoder: Path
    dynamics: Path
    inputs: dict[str, str]
    latents: Listed | None = None
    subspace: Path | None = None


class Previous(NamedTuple):
    """Where learning goes on from.

    Args:
        path: file of the weights.
        fingerprint: of what they are.
    """

    path: Path
    fingerprint: str


def agent_of(run: Run) -> Path:
    """The folder of the agent that a run's controller stage made, its files verified.

    Raises `ArtifactError` where the stage is not finished, or a file is damaged.
    """
    folder = run.locate("controller")
    for file in listed(folder, "agent/*"):
        verify(file)
    return folder / "agent"


@dataclass(frozen=True)
class Context:
    """One command at work.

    Args:
        config: the whole configuration.
        run: the artifacts of this run.
        published: the folder of an agent whose parts serve where the run has none: it drives, V
            goes on from its V, and C is evolved on its V and M.
        earlier: the rounds before this one: their episodes are trained on as well, the last one's
            controller collects, and its V, M and C are where learning goes on from.
    """

    config: Config
    run: Run
    published: Path | None = None
    earlier: tuple[Run, ...] = ()

    @property
    def model(self) -> Path | None:
        """The folder of the trained agent that ``model=`` names."""
        name = self.config.model
        return None if name is None else require_agent("model", name)

    def check(self) -> None:
        """Raise `ConfigError` for what no stage of this command could use, before any begins."""
        self._check_agent()
        for part in parts(self.config):
            _check_models(part)
            if part.env.squash is not None:
                _check_squash(part.env.squash)
            if part.stage not in extras.WITHOUT_ENV:
                engines = [part.env.engine]
                if part.stage in extras.JUDGING:
                    engines.append(part.evaluate.engine)
                for engine in engines:
                    check_registered(replace(self, config=part).env_spec(engine))
        if self.config.stage not in (Stage.inspect, Stage.report):
            choose_device(self.config.device.name)
        if self.config.stage is not Stage.inspect:
            reason = unwritable(self.run.root)
            if reason is not None:
                raise ConfigError(
                    f"data={self.config.data}: {self.run.root} cannot be written ({reason}); choose"
                    " another folder"
                )

    def _check_agent(self) -> None:
        """Raise `ConfigError` where the agent to evaluate was trained for another environment."""
        if self.config.stage is not Stage.evaluate or self.model is None:
            return
        record = untrusted.read_json(self.model / "agent.json", untrusted.MEGABYTE)
        learned = record.get("env_id") if isinstance(record, dict) else None
        if isinstance(learned, str) and learned != self.config.env.id:
            raise ConfigError(
                f"model={self.config.model}: trained for {learned}, env is {self.config.env.id};"
                f" add {environment_of(learned)}"
            )

    @property
    def bootstrap(self) -> Run | None:
        """The shorter run before this one, whose controller collects, whose episodes are trained on
        as well, and whose V is where V goes on from; None where the configuration has none, or a
        trained agent takes its place."""
        wanted = self.config.bootstrap and self.published is None
        return self.run.within("bootstrap", "bootstrap") if wanted else None

    @property
    def collectors(self) -> tuple[Run, ...]:
        """The runs before this one whose episodes are trained on; the last one's agent collects."""
        return self.earlier if self.bootstrap is None else (self.bootstrap, *self.earlier)

    def begin(
        self, stage: str, inputs: dict[str, str], growable: tuple[str, ...], **groups: object
    ) -> StageFolder:
        """Open the folder of a stage whose content is a function of `groups`, inputs and seed.

        One that is asked for by its name is made in this run; in a chain the base's serves, where
        it is the same.
        """
        share = self.config.stage.name != stage
        content, overwrite = self.content(**groups), self.config.overwrite
        folder = self.run.begin(stage, content, inputs, growable, overwrite, share)
        if folder.unlike is not None:
            say(f"{stage}: {folder.unlike}: making it anew")
        if folder.complete:
            say(f"{stage}: done before ({folder.path}, {folder.record['fingerprint']})")
        return folder

    @property
    def device(self) -> torch.device:
        """Where the models run."""
        return choose_device(self.config.device.name)

    @property
    def bfloat16(self) -> bool:
        """Whether networks compute in bfloat16."""
        choice = self.config.trainer.precision
        if choice is Precision.auto:
            return has_bfloat16(self.device)
        return choice is Precision.bfloat16

    def fabric(self) -> Fabric:
        """Device and precision for training."""
        # Imported here, for it takes as long as everything else and few stages train.
        from lightning_fabric import Fabric

        # It tells of precisions and of Slurm's srun, and sets its own level when imported.
        logging.getLogger("lightning_fabric").setLevel(logging.ERROR)
        warnings.filterwarnings("ignore", module="lightning_fabric")
        if self.device.type == "cpu":
            cpu.tune()
        precision: Literal["bf16-mixed", "32-true"]
        precision = "bf16-mixed" if self.bfloat16 else "32-true"
        return Fabric(accelerator=self.device.type, devices=1, precision=precision)

    def tracker(self, folder: StageFolder) -> MetricsLog:
        """Metrics of a stage."""
        name = f"{self.run.root.name}/{folder.stage}"
        tracker = trackers.start(self.config.logger, folder.path, name, folder.record)
        return MetricsLog(folder.path / "metrics.csv", tracker, folder.record["made_by"])

    def env_spec(self, engine: Engine | None = None) -> EnvSpec:
        """The environment, on the configured engine or on another."""
        env = self.config.env
        spec = EnvSpec(
            id=env.id,
            engine=(engine or env.engine).name,
            max_steps=env.max_steps,
            crop_rows=env.crop_rows,
            size=env.size,
            action_bins=None if env.action_bins is None else tuple(env.action_bins),
            kwargs=dict(env.kwargs),
        )
        return replace(spec, engine=resolve_engine(spec))

    def env_content(self, spec: EnvSpec) -> dict[str, object]:
        """The keys of the environment that shape data."""
        keys = {f"env.{name}": plain(value) for name, value in vars(spec).items()}
        return keys | {"env.num_envs": self.config.env.num_envs}

    @cached_property
    def controls(self) -> ActionSpec:
        """What an agent has in its hands."""
        env, spec = self.config.env, self.env_spec()
        prepare(spec)
        envs = make_vector_env(spec, 1)
        try:
            controls = action_spec(envs)
        finally:
            envs.close()
        if env.squash is not None and len(controls.low) != len(env.squash):
            raise ConfigError(
                f"env.squash has {len(env.squash)} entries, {env.id} has"
                f" {len(controls.low)} actions"
            )
        return controls

    def agent_config(self) -> AgentConfig:
        """What joins the parts of the agent that this configuration makes."""
        controller, squash = self.config.controller, self.config.env.squash
        features = FeatureSpec(
            state=STATE_FEATURES[controller.features],
            sampled=controller.latent is LatentChoice.sampled,
            updated=controller.hidden is HiddenChoice.after,
        )
        spec = ControllerSpec(
            squash=self.controls.squash if squash is None else tuple(squash),
            hidden_units=controller.hidden_units,
            bias=controller.bias,
        )
        return AgentConfig(features, spec, self.config.env.id)

    @property
    def processes(self) -> int:
        """Worker processes; none where a GPU does the work, whose batches want to be one."""
        if self.config.workers.processes is not None:
            return self.config.workers.processes
        return available_cores() if self.device.type == "cpu" else 0

    def real(
        self,
        engine: Engine | None,
        encoder: Path | None = None,
        dynamics: Path | None = None,
        features: FeatureSpec = FeatureSpec(),  # noqa: B008  (immutable)
    ) -> RealWorldSpec:
        """The recipe of a real world.

        Raises:
            ConfigError: the encoder takes frames of another size than those of the environment.
        """
        spec = self.env_spec(engine)
        if encoder is not None and (taken := load_encoder(encoder).frame_size) != spec.size:
            raise ConfigError(
                f"env.size={spec.size}: the encoder {encoder} takes frames of {taken} pixels;"
                f" choose env.size={taken}"
            )
        prepare(spec, str(self.device))
        return RealWorldSpec(
            env=spec,
            env_processes=1 if self.processes else available_cores(),
            encoder=encoder,
            dynamics=dynamics,
            features=features,
            device=str(self.device),
            bfloat16=self.bfloat16,
        )

    def dream(self, dynamics: Path, features: FeatureSpec, temperature: float) -> DreamWorldSpec:
        """The recipe of a dream."""
        return DreamWorldSpec(
            dynamics=dynamics,
            temperature=temperature,
            features=features,
            device=str(self.device),
            bfloat16=self.bfloat16,
        )

    def pool(
        self, world_spec: WorldSpec, on_steps: Heartbeat = lambda steps: None, jobs: int = 10**9
    ) -> Pool[Any]:
        """Workers that each have a world; no more of them than there are jobs."""
        processes = min(self.processes, jobs)
        return Pool(world_spec.build, processes, self.config.workers.timeout, on_steps)

    def content(self, **groups: object) -> dict[str, object]:
        """What determines an artifact, flat: the seed and some groups of the configuration."""
        return flat(seed=self.config.seed, **groups)

    def rollout_fingerprints(self) -> dict[str, str]:
        """The fingerprints of the episodes that are trained on."""
        runs = (*self.collectors, self.run)
        names = [f"rollouts-{number}" for number in range(1, len(runs))] + ["rollouts"]
        return {name: run.fingerprint("rollouts") for name, run in zip(names, runs, strict=True)}

    def episodes(self) -> EpisodeSet:
        """The episodes that are trained on: of this run and of the rounds before it."""
        policy = self.config.rollouts.on_corrupt.name
        folders = [run.locate("rollouts") for run in (*self.collectors, self.run)]
        return EpisodeSet.listed(
            [file for folder in folders for file in listed(folder, "shard-*.h5")], policy
        )

    def initial_fingerprint(self, stage: str) -> dict[str, str]:
        """What learning goes on from: the same part of a run before, or of an agent, if any."""
        before = self.previous(stage)
        return {} if before is None else {f"previous {stage}": before.fingerprint}

    def warm_start(self, stage: str, module: Encoder | DynamicsModel) -> None:
        """Give `module` the weights that it is to go on from, if there are any.

        Raises:
            ConfigError: those are of other sizes.
        """
        before = self.previous(stage)
        if before is None:
            return
        try:
            load = load_encoder if stage == "vae" else load_dynamics
            module.load_state_dict(load(before.path).state_dict())
        except RuntimeError as error:
            raise ConfigError(
                f"{stage} goes on from {before.path}, which has other sizes than {stage}.* asks"
                " for: give both the same"
            ) from error

    def previous(self, stage: str) -> Previous | None:
        """Where a part goes on from. A bootstrap run, or an agent, gives its V only: M and C are
        quickly learned anew, and may be of other kinds."""
        before = self.earlier[-1] if self.earlier else self.bootstrap if stage == "vae" else None
        if before is not None:
            if stage == "controller":
                path = agent_of(before) / "controller.safetensors"
            else:
                path = verified(before.locate(stage), f"{stage}.safetensors")
            return Previous(path, before.fingerprint(stage))
        if self.published is not None and stage == "vae":
            path = self.published / "vae.safetensors"
            return Previous(path, part_fingerprint(self.published, path.name))
        return None

    def models(self) -> Models:
        """V and M: this run's own, or those of the agent that it begins from."""
        agent = self.published
        if agent is None or self.run.has("rnn"):
            encoder, dynamics = self.run.locate("vae"), self.run.locate("rnn")
            return Models(
                verified(encoder, "vae.safetensors"),
                verified(dynamics, "rnn.safetensors"),
                {name: self.run.fingerprint(name) for name in ("vae", "rnn")},
                latents=entry(dynamics, "latents.h5"),
            )
        return Models(
            agent / "vae.safetensors",
            agent / "rnn.safetensors",
            {"base": agent_fingerprint(agent)},
            subspace=agent / "pca_subspace.safetensors",
        )

    def agent(self) -> tuple[Path, dict[str, str]]:
        """The folder of the agent to judge, and its fingerprint: ``model=``, or this run's own, or
        the one that it begins from."""
        if self.model is not None:
            folder = self.model
        elif self.published is not None and not self.run.has("controller"):
            folder = self.published
        else:
            folder = agent_of(self.run)
        return folder, {"agent": agent_fingerprint(folder)}


def check_frames(episodes: EpisodeSet, size: int, by: object) -> None:
    """Raise `ConfigError` unless the frames are squares of `size` pixels, which `by` asks for."""
    height, width, _ = episodes.frame_shape
    if (height, width) != (size, size):
        raise ConfigError(
            f"{by}: takes frames of {size} pixels, those of {episodes.shards[0].path} are"
            f" {height}x{width}; collect them again with this env.size (stage=rollouts overwrite=true),"
            f" or train an encoder with env.size={height}"
        )


def _check_models(config: Config) -> None:
    """Raise `ConfigError` for models that cannot be built; on the meta device, without memory."""
    if config.stage not in (Stage.bootstrap, Stage.vae, Stage.rnn, Stage.all, Stage.iterate):
        return
    with torch.device("meta"):
        build_encoder(config.vae, config.env.size)
        build_dynamics(config.rnn, config.vae.latent_size, action_size=1, other={})


def _check_squash(names: list[str]) -> None:
    try:
        squashing(names)
    except (KeyError, ValueError) as error:
        raise ConfigError(
            f"env.squash: unknown squashing {error}, choose from"
            f" {', '.join(SQUASHINGS)}, or {CHOICE} for each action"
        ) from None
