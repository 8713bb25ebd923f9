"""Which finished artifacts a stage reads: episodes, models, agents, of this run or before it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from worldmodels.agents import pretrained
from worldmodels.agents.folder import fingerprint as agent_fingerprint
from worldmodels.agents.folder import part_fingerprint
from worldmodels.agents.hub import fetch, require_agent
from worldmodels.agents.model_files import load_encoder, load_members
from worldmodels.agents.starts_file import STARTS
from worldmodels.config.choices import Features, Objective, OnCorrupt
from worldmodels.config.hubs import is_hub
from worldmodels.config.schema import Config
from worldmodels.data.episodes import EpisodeSet
from worldmodels.data.latents import LatentSet
from worldmodels.errors import ArtifactError, ConfigError
from worldmodels.models.dynamics import DynamicsModel
from worldmodels.models.encoder import Encoder
from worldmodels.models.features import FeatureSpec
from worldmodels.runs.artifacts import Run
from worldmodels.runs.integrity import SHARDS, Listed, entry, listed, verified
from worldmodels.stages.trained import agent_of

STATE_FEATURES = {Features.z: (), Features.zh: ("h",), Features.zch: ("c", "h")}
"""The parts of the dynamics model's state that each choice of ``controller.features`` contains."""


@dataclass(frozen=True)
class Models:
    """The models that a controller is evolved on: those of a run, or those of an agent.

    Args:
        encoder: its file.
        dynamics: file of the dynamics model.
        fingerprints: of both, by name of the input.
        latents: file of the episodes that the dynamics model was trained on, where there is one;
            not yet verified.
        subspace: file of the principal components along which an agent's controller was evolved.
        starts: file of the moments at which episodes in an agent's dynamics model began, if any.
    """

    encoder: Path
    dynamics: Path
    fingerprints: dict[str, str]
    latents: Listed | None = None
    subspace: Path | None = None
    starts: Path | None = None


class Previous(NamedTuple):
    """Weights that training starts from.

    Args:
        path: file of the weights.
        fingerprint: of the artifact or agent that they are from.
    """

    path: Path
    fingerprint: str


@dataclass(frozen=True)
class Inputs:
    """The artifacts that a command may read, found and verified when a stage uses them.

    Every method raises `ArtifactError` where an artifact is missing, unfinished or damaged.

    Args:
        config: the whole configuration.
        run: the artifacts of this run.
        published: the folder of the agent that ``base=`` names, whose parts are used where the run
            has none: it collects episodes, the encoder is fine-tuned from its encoder, and
            controllers are evolved on its encoder and dynamics model.
        earlier: the rounds before this one: their episodes are trained on as well, the last one's
            controller collects, and training starts from the last one's weights.
        continued: a run whose training of a model is continued, with its optimiser and epochs.
    """

    config: Config
    run: Run
    published: Path | None = None
    earlier: tuple[Run, ...] = ()
    continued: Run | None = None

    @property
    def model(self) -> Path | None:
        """The folder of the trained agent that ``model=`` names."""
        name = self.config.model
        return None if name is None else require_agent("model", name)

    @property
    def fetched(self) -> dict[str, str]:
        """The agents on the Hub that ``model=`` and ``base=`` name, each with its commit."""
        named = {"model": self.config.model, "base": self.config.base}
        return {
            key: fetch(key, name).source
            for key, name in named.items()
            if name is not None and is_hub(name)
        }

    @property
    def bootstrap(self) -> Run | None:
        """The shorter run before this one, whose controller collects, whose episodes are trained on
        as well, and from whose encoder the encoder is fine-tuned; None where the configuration has
        none, or where a trained agent (``base=``) replaces it."""
        wanted = self.config.bootstrap and self.published is None
        return self.run.within("bootstrap", "bootstrap") if wanted else None

    @property
    def collectors(self) -> tuple[Run, ...]:
        """The runs before this one whose episodes are trained on; the last one's agent collects."""
        return self.earlier if self.bootstrap is None else (self.bootstrap, *self.earlier)

    def episodes(self) -> EpisodeSet:
        """The episodes that are trained on: of this run and of the runs before it."""
        return self._episodes(*self.collectors, self.run)

    def own_episodes(self) -> EpisodeSet:
        """The episodes of this run alone."""
        return self._episodes(self.run)

    def _episodes(self, *runs: Run) -> EpisodeSet:
        policy = self.config.rollouts.on_corrupt.name
        folders = [run.locate("rollouts") for run in runs]
        return EpisodeSet.listed(
            [file for folder in folders for file in listed(folder, "shard-*.h5")], policy
        )

    def newest(self, episodes: EpisodeSet, rounds: int = 1) -> np.ndarray:
        """The indices of this run's own among `episodes`, as `episodes()` returned them.

        Args:
            episodes: of this run and of the runs before it.
            rounds: above 1, with those of so many less one of the runs before it.
        """
        newest = [*self.collectors, self.run][-rounds:]
        folders, first = [run.locate("rollouts") for run in newest], 0
        numbers: list[int] = []
        for shard in episodes.shards:
            count = len(shard.lengths)
            numbers += range(first, first + count) if shard.path.parent in folders else ()
            first += count
        return np.array(numbers, np.int64)

    def episode_fingerprints(self) -> dict[str, str]:
        """The fingerprints of the episodes that are trained on, by name of input."""
        runs = (*self.collectors, self.run)
        names = [f"rollouts-{number}" for number in range(1, len(runs))] + ["rollouts"]
        named = dict(zip(names, runs, strict=True))
        found = {name: run.fingerprint("rollouts") for name, run in named.items()}
        skipped = ", ".join(
            f"{name}/{path.name}" for name, run in named.items() for path in self._skipped(run)
        )
        return found | ({SHARDS: f"without {skipped}"} if skipped else {})

    def _skipped(self, run: Run) -> list[Path]:
        """The damaged shards of a run that ``rollouts.on_corrupt=skip`` leaves out."""
        if self.config.rollouts.on_corrupt is not OnCorrupt.skip:
            return []
        used = {shard.path for shard in self._episodes(run).shards}
        files = listed(run.locate("rollouts"), "shard-*.h5")
        return [file.path for file in files if file.path not in used]

    def previous(self, stage: str) -> Previous | None:
        """The weights that training of `stage` starts from; None to start from random ones.

        A round starts from the round before. A bootstrap run or an agent provides its encoder only:
        dynamics model and controller train quickly, and may be of other classes.
        """
        before = self.bootstrap if stage == "vae" else None
        if self.earlier:
            before = self.previous_controller if stage == "controller" else self.earlier[-1]
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

    @property
    def previous_controller(self) -> Run | None:
        """The round before, from whose controller training starts; None in the first round, and
        where that controller was trained for another objective."""
        if not self.earlier:
            return None
        before, wanted = self.earlier[-1], self.config.controller.objective
        summary = before.manifest("controller")["summary"]
        # Without the key: of an older version, or trained by gradients.
        same = summary.get("objective", Objective.reward.name) == wanted.name
        return before if same else None

    def previous_fingerprint(self, stage: str) -> dict[str, str]:
        """The fingerprint of the weights that training of `stage` starts from, if there are any."""
        before = self.previous(stage)
        found = {} if before is None else {f"previous {stage}": before.fingerprint}
        if self.continued is not None:
            found[f"continued {stage}"] = self.continued.fingerprint(stage)
        return found

    def checkpoint(self, stage: str, part: str = "") -> Path | None:
        """The folder of the checkpoint that training of `stage` continues, if there is one.

        Args:
            stage: that trains.
            part: folder, in that of the stage, of one of several models.
        """
        return None if self.continued is None else self.continued.locate(stage) / part

    def pretrained_source(self) -> pretrained.Source | None:
        """The published weights (``vae.pretrained``) that training of the encoder starts from; None
        where it starts from those of another encoder, or from random ones.

        Raises:
            ConfigError: they cannot be found.
        """
        name = self.config.vae.pretrained
        if name is None or self.previous("vae") is not None:
            return None
        return pretrained.find(name)

    def pretrained_fingerprint(self) -> dict[str, str]:
        """The fingerprint of the published weights that training starts from, if there are any;
        raises as `pretrained_source`, unless a finished encoder needs them no more."""
        try:
            source = self.pretrained_source()
        except ConfigError:
            used = self.pretrained_before()
            if used is None:
                raise
            return {"pretrained": used}
        return {} if source is None else {"pretrained": source.fingerprint}

    def pretrained_before(self) -> str | None:
        """The fingerprint of the weights of this ``vae.pretrained`` that the finished encoder was
        trained from; None where there is no such encoder, or where it is to be made again."""
        if self.config.overwrite or not self.run.has("vae"):
            return None
        made = self.run.manifest("vae")
        if made["config"].get("vae.pretrained") != self.config.vae.pretrained:
            return None
        fingerprint: str | None = made["inputs"].get("pretrained")
        return fingerprint

    def previous_subspace(self) -> Path | None:
        """The principal components of the round before, if its controller is the start of the
        search, which it is without loss along them, and the encoder is the same."""
        before = self.previous_controller
        if before is None or before.fingerprint("vae") != self.run.fingerprint("vae"):
            return None
        path = agent_of(before) / "pca_subspace.safetensors"
        return path if path.exists() else None

    def encoded(self, episodes: EpisodeSet) -> LatentSet | None:
        """The latents of the round before, or of the training that is continued, where the encoder
        is the same and its episodes are the first of `episodes`; None where there are none."""
        before = self.continued or (self.earlier[-1] if self.earlier else None)
        if before is None or before.fingerprint("vae") != self.run.fingerprint("vae"):
            return None
        latents = LatentSet(entry(before.locate("rnn"), "latents.h5"))
        first = len(latents.lengths)
        same = np.array_equal(latents.lengths, episodes.lengths[:first])
        return latents if same and np.array_equal(latents.seeds, episodes.seeds[:first]) else None

    def warm_start(self, stage: str, module: Encoder | DynamicsModel, member: int = 0) -> None:
        """Load into `module` the weights that its training starts from, if there are any.

        Args:
            stage: that trains it.
            module: the encoder, or a dynamics model.
            member: its number in an ensemble, from 0. A member that the round before does not have
                starts from random weights.

        Raises:
            ConfigError: they have other sizes than `module`.
        """
        before = self.previous(stage)
        if before is None:
            return
        try:
            found = [load_encoder(before.path)] if stage == "vae" else load_members(before.path)
            for trained in found[member : member + 1]:
                # Clips of 3 and of 4 frames, and 2 and 4 attention heads, have tensors of equal
                # shapes.
                if getattr(trained, "clip_length", 1) != getattr(module, "clip_length", 1):
                    raise RuntimeError("clips of another length")
                if trained.sizes.get("heads") != module.sizes.get("heads"):
                    raise RuntimeError("another number of attention heads")
                module.load_state_dict(trained.state_dict())
        except RuntimeError as error:
            raise ConfigError(
                f"{stage}: its sizes differ from those of {before.path}, whose weights training"
                f" starts from; give {stage}.* the same sizes as there"
            ) from error

    def models(self) -> Models:
        """Encoder and dynamics model: this run's own, or those of the agent of ``base=``; raises
        `ArtifactError` for a dynamics model that was made from another encoder."""
        agent = self.published
        if agent is None or self.run.has("rnn"):
            encoder, dynamics = self.run.locate("vae"), self.run.locate("rnn")
            fingerprints = {name: self.run.fingerprint(name) for name in ("vae", "rnn")}
            made_from = self.run.manifest("rnn")["inputs"].get("vae")
            if made_from != fingerprints["vae"]:
                raise ArtifactError(
                    f"{dynamics}: was made from another vae ({made_from}, now"
                    f" {fingerprints['vae']}): make it again by stage=rnn overwrite=true"
                )
            return Models(
                verified(encoder, "vae.safetensors"),
                verified(dynamics, "rnn.safetensors"),
                fingerprints,
                latents=entry(dynamics, "latents.h5"),
            )
        return Models(
            agent / "vae.safetensors",
            agent / "rnn.safetensors",
            {"base": agent_fingerprint(agent)},
            subspace=agent / "pca_subspace.safetensors",
            starts=agent / STARTS if (agent / STARTS).exists() else None,
        )

    def agent(self) -> tuple[Path, dict[str, str]]:
        """The folder of the agent to evaluate, and its fingerprint: the agent of ``model=``, else
        this run's own, else that of ``base=``."""
        if self.model is not None:
            folder = self.model
        elif self.published is not None and not self.run.has("controller"):
            folder = self.published
        else:
            folder = agent_of(self.run)
        return folder, {"agent": agent_fingerprint(folder)}


def check_features(dynamics: DynamicsModel, chosen: Features) -> None:
    """Raise `ConfigError` where the dynamics model's state lacks a feature of the controller."""
    known = dynamics.state_features.keys()
    missing = set(STATE_FEATURES[chosen]) - known
    if missing:
        possible = [choice.name for choice, parts in STATE_FEATURES.items() if known >= set(parts)]
        raise ConfigError(
            f"controller.features={chosen.name}: this dynamics model's state has no {min(missing)}"
            f" (it has {', '.join(known) or 'none'}); choose {' or '.join(possible)}, or another"
            " model"
        )


def check_latents(dynamics: DynamicsModel, spec: FeatureSpec) -> None:
    """Raise `ConfigError` where latents are sampled in one world and means in the other."""
    if dynamics.sampled != spec.sampled:
        wanted = "sampled" if dynamics.sampled else "mean"
        raise ConfigError(
            f"controller.latent: must equal rnn.latent={wanted} when controller.world=dream; give"
            f" controller.latent={wanted}"
        )


def check_rewards(episodes: EpisodeSet, reward_weight: float) -> None:
    """Raise `ConfigError` where rewards are to be predicted and were not recorded."""
    for shard in episodes.shards:
        if reward_weight and not shard.attrs.get("rewarded", 1):
            raise ConfigError(
                f"rnn.reward_weight={reward_weight}: the episodes of {shard.path} have no rewards;"
                " give rnn.reward_weight=0"
            )


def check_frames(episodes: EpisodeSet, size: int, by: object) -> None:
    """Raise `ConfigError` unless the frames are squares of `size` pixels, which `by` requires."""
    height, width, _ = episodes.frame_shape
    if (height, width) != (size, size):
        raise ConfigError(
            f"{by}: takes frames of {size} pixels, those of {episodes.shards[0].path} are"
            f" {height}x{width}; collect them again with this env.size (stage=rollouts"
            f" overwrite=true), or train an encoder with env.size={height}"
        )
