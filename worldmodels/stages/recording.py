"""The episodes that a person drives, as the artifact ``rollouts`` of a run."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator

from worldmodels import seeds
from worldmodels.config.schema import flat
from worldmodels.data.episodes import EpisodeSet
from worldmodels.data.shards import Episode, Shard, write_shard
from worldmodels.errors import DataError
from worldmodels.reporting.pictures import contact_sheet, save_picture
from worldmodels.runs.integrity import Listed, set_aside_damaged
from worldmodels.runs.manifests import MANIFEST
from worldmodels.runs.tracking import say
from worldmodels.stages.context import Context
from worldmodels.system.resources import Meter

POLICY = "human"
"""In the manifest and in the attributes of shards, where stage=rollouts has rollouts.policy."""


class Recording:
    """Adds episodes to those of a run, each in a shard of its own.

    The artifact is complete after each episode, so that a process that is killed loses the episode
    that goes on and no other. As a context manager it holds the lock of the folder; one in which
    nothing was recorded is removed.

    Args:
        context: of the command.

    Raises:
        ArtifactError: the run has other rollouts, or another process is recording.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        spec = context.runtime.env_spec(context.config.watch.engine)
        content = flat(seed=context.config.seed, **context.runtime.env_content(spec))
        # One environment at a time, whatever env.num_envs is.
        content |= {"env.num_envs": 1, "rollouts.policy": POLICY}
        overwrite = context.config.overwrite
        self._folder = context.run.begin("rollouts", content, {}, overwrite=overwrite)
        self._folder.hold()
        self._attrs: dict[str, str | int | float] = {
            "env": spec.id,
            "engine": spec.engine,
            "policy": POLICY,
            "made_by": self._folder.record["made_by"],
        }
        self._files: list[Listed] = []
        self._seeds: set[int] = set()
        self._find()

    @property
    def count(self) -> int:
        """How many episodes there are."""
        return len(self._files)

    def seeds(self) -> Iterator[int]:
        """The run's seeds of collection, without those of episodes that are recorded already."""
        context = self._context
        path = len(context.inputs.collectors)
        for count in itertools.count(1):
            *_, seed = seeds.draw(seeds.Purpose.ROLLOUTS, context.config.seed, path, count=count)
            if seed not in self._seeds:
                yield seed

    def add(self, episode: Episode, driven: int) -> None:
        """Write an episode, and the manifest of all of them.

        Args:
            episode: that has ended.
            driven: steps whose action a person chose.

        Raises:
            ArtifactError: the disk is full or not writable.
            DataError: the episode is too long to be in memory as a whole.
        """
        names = {file.path.name for file in self._files}
        fresh = (f"shard-{number:05d}.h5" for number in itertools.count())
        path = self._folder.path / next(name for name in fresh if name not in names)
        write_shard(path, [episode], {**self._attrs, "human_steps": driven})
        self._files.append(Listed(path, made_by=str(self._attrs["made_by"])))
        self._seeds.add(episode.seed)
        self._finish()
        say(f"watch: recorded episode {self.count} in {path}")

    def __enter__(self) -> Recording:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        folder = self._folder
        if not self._files:
            folder.keep({})
            if [path.name for path in folder.path.iterdir()] == [MANIFEST]:
                folder.abandon()
                return
        folder.__exit__(kind, error, trace)

    def _find(self) -> None:
        """Take over the shards that are there; those that are damaged are moved aside."""
        folder = self._folder
        known = folder.record.get("files", {})
        for path in sorted(folder.path.glob("shard-*.h5")):
            file = Listed(path, known.get(path.name), folder.record["made_by"])
            try:
                with Shard(file) as shard:
                    if file.sha256 is None:  # killed between the shard and the manifest
                        shard.verify()
                    self._seeds.update(shard.seeds.tolist())
            except DataError as error:
                say(f"watch: {error} ({set_aside_damaged(path)})")
                continue
            self._files.append(file)
        if self._files and {file.path.name for file in self._files} != known.keys():
            self._finish()

    def _finish(self) -> None:
        """Write contact sheet and manifest of the episodes that there are."""
        folder = self._folder
        episodes = EpisodeSet.listed(sorted(self._files, key=lambda file: file.path))
        save_picture(folder.path / "contact_sheet.png", contact_sheet(episodes))
        summary = {
            "episodes": episodes.num_episodes,
            "frames": episodes.num_frames,
            "mean_return": float(episodes.returns().mean()),
            "engine": str(self._attrs["engine"]),
        }
        names = [shard.path.name for shard in episodes.shards]
        folder.finish(episodes.fingerprint, {}, summary, names)
        folder.hold()
        folder.started, folder.meter = time.monotonic(), Meter()  # counted from here for the next
