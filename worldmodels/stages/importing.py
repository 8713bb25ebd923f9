"""Stage ``import``: episodes that other programs recorded, as the rollouts of a run."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from worldmodels import seeds
from worldmodels.config.choices import Format
from worldmodels.config.schema import Config, flat
from worldmodels.data.episodes import EpisodeSet
from worldmodels.data.foreign import Kind, Source, as_episode
from worldmodels.data.minari_sets import MinariSource
from worldmodels.data.numpy_files import NumpySource
from worldmodels.data.shards import Episode, Shard, write_shard
from worldmodels.data.videos import VideoSource
from worldmodels.envs.observation import ObservationSpec
from worldmodels.errors import ConfigError, DataError
from worldmodels.files.untrusted import printable
from worldmodels.reporting.pictures import contact_sheet, save_picture
from worldmodels.runs.integrity import IMPORTED, REMEDIES, Listed, set_aside_damaged
from worldmodels.runs.stage_folder import StageFolder
from worldmodels.runs.tracking import Progress, say
from worldmodels.stages.context import Context
from worldmodels.system import interrupts

SHARD_BYTES = 2**24
"""Of frames, after which a shard is written: 1,365 of 64x64."""


def run(context: Context) -> None:
    """Import the episodes of ``source=`` that are not in the run yet.

    A shard is kept if its episodes are still made from the same files; from the first other one on,
    all are made again. So an import that was killed, or ended at a file that does not fit,
    continues, and one whose source has grown is extended.

    Raises:
        ArtifactError: an episode does not fit, or the run has other rollouts.
        ConfigError: there is no source.
    """
    config = context.config
    source = _source(config)
    frames = ObservationSpec(config.env.crop_rows, config.env.size)
    content = flat(seed=config.seed, format=config.format)
    content |= {f"env.{name}": value for name, value in vars(frames).items()}
    content["rollouts.policy"] = IMPORTED
    with context.run.begin("rollouts", content, {}, overwrite=config.overwrite) as folder:
        kept = _kept(folder, source)
        done = kept[-1].stop if kept else 0
        if folder.complete and done == len(source):
            say(f"import: done before ({folder.path}, {folder.record['fingerprint']})")
            return
        folder.hold()
        if done:
            say(f"import: {done} of {len(source)} episodes are there: continuing")
        known = folder.record.get("files", {})
        names = [part.name for part in kept]
        folder.keep({name: known[name] for name in names if name in known})
        with Progress("importing", len(source), "episodes", done) as progress:
            for part in _write(folder, source, config, frames, kept):
                names.append(part.name)
                progress.advance(part.stop - part.start)
                interrupts.check()
        _finish(folder, names)


class _Part(NamedTuple):
    """A shard: its name, and the episodes ``[start, stop)`` of the source in it."""

    name: str
    start: int
    stop: int
    kind: Kind


def _source(config: Config) -> Source:
    if config.source is None:
        raise ConfigError("source: stage=import needs it; give the folder of the episodes")
    folder = Path(config.source)
    if not folder.is_dir():
        raise ConfigError(f"source={config.source}: there is no such folder; check the path")
    if config.format is Format.lerobot:
        # Imported here: pyarrow is optional.
        from worldmodels.data.lerobot_sets import LeRobotSource

        return LeRobotSource(folder, config.camera)
    if config.format is Format.minari:
        return MinariSource(folder)
    return VideoSource(folder) if config.format is Format.videos else NumpySource(folder)


def _kept(folder: StageFolder, source: Source) -> list[_Part]:
    """The shards, from the first one on, that are whole and made from what the source has now."""
    kept: list[_Part] = []
    known = folder.record.get("files", {})
    while len(kept) == 0 or kept[-1].stop < len(source):
        name, start = f"shard-{len(kept):05d}.h5", kept[-1].stop if kept else 0
        path = folder.path / name
        if not path.exists():
            break
        file = Listed(path, known.get(name), folder.record["made_by"], REMEDIES["import"])
        try:
            with Shard(file) as shard:
                if file.sha256 is None:
                    shard.verify()
                stop, size = start + len(shard.lengths), shard.frame_bytes
                actions = len(shard.read_episode(0).actions[0])
                attrs = shard.attrs
        except DataError as error:
            folder.hold()
            say(f"import: {error} ({set_aside_damaged(path)})")
            break
        full = size >= SHARD_BYTES or stop == len(source)
        if stop > len(source) or not full or attrs.get("sources") != _origin(source, start, stop):
            break
        kept.append(_Part(name, start, stop, Kind(actions, bool(attrs["rewarded"]))))
    return kept


def _origin(source: Source, start: int, stop: int) -> str:
    """SHA-256 of what some episodes are made from."""
    identities = "\n".join(source.identity(index) for index in range(start, stop))
    return hashlib.sha256(identities.encode()).hexdigest()


def _write(
    folder: StageFolder,
    source: Source,
    config: Config,
    frames: ObservationSpec,
    kept: list[_Part],
) -> Iterator[_Part]:
    """Write the shards that follow those that are kept."""
    drawn = seeds.draw(seeds.Purpose.ROLLOUTS, config.seed, count=len(source))
    start = kept[-1].stop if kept else 0
    kind = kept[-1].kind if kept else None
    number, size = len(kept), 0
    episodes: list[Episode] = []
    for index in range(start, len(source)):
        episode, kind = as_episode(source.read(index), frames, drawn[index], kind)
        episodes.append(episode)
        size += episode.frames.nbytes
        if size < SHARD_BYTES and index + 1 < len(source):
            continue
        part = _Part(f"shard-{number:05d}.h5", start, index + 1, kind)
        attrs: dict[str, str | int | float] = {
            "env": printable(str(config.source), 200),
            "engine": config.format.name,
            "policy": IMPORTED,
            "rewarded": int(kind.rewarded),
            "sources": _origin(source, part.start, part.stop),
            "made_by": folder.record["made_by"],
        }
        write_shard(folder.path / part.name, episodes, attrs)
        yield part
        number, start, size, episodes = number + 1, part.stop, 0, []


def _finish(folder: StageFolder, names: list[str]) -> None:
    """Remove shards that are left over, and write contact sheet, summary and manifest."""
    for path in folder.path.glob("shard-*.h5"):
        if path.name not in names:
            path.unlink()
    files = [Listed(folder.path / name, made_by=folder.record["made_by"]) for name in names]
    episodes = EpisodeSet.listed(files)
    save_picture(folder.path / "contact_sheet.png", contact_sheet(episodes))
    summary = {
        "episodes": episodes.num_episodes,
        "frames": episodes.num_frames,
        "mean_return": float(episodes.returns().mean()),
        "engine": str(episodes.shards[0].attrs["engine"]),
        "rewarded": bool(episodes.shards[0].attrs["rewarded"]),
    }
    folder.finish(episodes.fingerprint, {}, summary, names)
    rewards = "" if summary["rewarded"] else ", without rewards"
    say(
        f"import: {episodes.num_episodes} episodes, {episodes.num_frames:,} frames{rewards}"
        f" ({folder.path})"
    )
    given = [int(seed) for shard in episodes.shards for seed in shard.seeds]
    if seen := [seed for seed in given if seed < seeds.EVALUATION_END]:
        say(
            f"import: warning: {len(seen)} episodes were recorded with seeds {min(seen)} to"
            f" {max(seen)}, which are in the range of evaluations; choose an evaluate.first_seed"
            f" above {max(seen)}, or scores may be of episodes that were trained on"
        )
