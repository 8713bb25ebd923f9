"""Encoding: every frame of the recorded episodes to the posterior of its latent, once."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from itertools import chain, pairwise
from pathlib import Path

import numpy as np
import torch

from worldmodels.data.clips import clips
from worldmodels.data.episodes import EpisodeSet
from worldmodels.data.latents import EncodedEpisode, LatentSet, write_latents
from worldmodels.data.prefetch import prefetch
from worldmodels.data.shards import Episode
from worldmodels.errors import DataError
from worldmodels.models.encoder import Encoder, to_input
from worldmodels.runs.tracking import Progress
from worldmodels.system import interrupts
from worldmodels.system.spent import spending

BATCH = 256
"""Frames that are encoded at once; of clips, all frames count."""
PART_FRAMES = 200_000
"""About the frames of a part: 15 s of two cores, which are encoded again after an interruption."""


@torch.inference_mode()
def encode_episodes(
    episodes: EpisodeSet,
    encoder: Encoder,
    path: Path,
    attrs: Mapping[str, str],
    device: torch.device,
    bfloat16: bool,
    known: LatentSet | None = None,
) -> None:
    """Encode episodes and write the posteriors to `path`, one episode in memory at a time.

    Episodes that need long are encoded in parts, files in the folder ``<path>.parts`` until the
    last one is finished. Where an earlier process left such parts with the same attributes, the
    encoding continues after them.

    Args:
        episodes: T + 1 frames each.
        encoder: it is moved to `device` and set to evaluation mode.
        path: of the HDF5 file; mean and logvar are (T + 1, Z) float32 for each episode, see
            `worldmodels.data.latents`. It is written atomically.
        attrs: attributes of the file, which name what it is made from.
        device: to encode on.
        bfloat16: encode under autocast in bfloat16; results are stored as float32.
        known: what this encoder has encoded before; its episodes are copied.

    Raises:
        DataError: a shard is damaged.
        ArtifactError: the disk is full or not writable.
        Stopped: the process was asked to stop; finished parts are kept.
    """
    encoder.to(device).eval()
    first = 0 if known is None else len(known.lengths)
    ranges = _parts(episodes.lengths, first)
    folder = path.with_name(f"{path.name}.parts")
    with Progress("encoding", episodes.num_episodes, "episodes") as progress:

        def encoded(numbers: range) -> Iterator[EncodedEpisode]:
            for episode in prefetch(episodes.episode(i) for i in numbers):
                interrupts.check()
                yield _encode(episode, encoder, device, bfloat16)
                progress.advance()

        progress.advance(first)
        if len(ranges) > 1:
            parts = [folder / f"part-{number:05d}.h5" for number in range(len(ranges))]
            for part, numbers in zip(parts, ranges, strict=True):
                if _is_finished(part, episodes.seeds[numbers.start : numbers.stop], attrs):
                    progress.advance(len(numbers))
                else:
                    write_latents(part, encoded(numbers), attrs)
            rest = chain.from_iterable(_copied(LatentSet(part)) for part in parts)
        else:
            rest = chain.from_iterable(encoded(numbers) for numbers in ranges)
        write_latents(path, chain(() if known is None else _copied(known), rest), attrs)
    shutil.rmtree(folder, ignore_errors=True)


def _parts(lengths: np.ndarray, first: int) -> list[range]:
    """The episodes from `first` on, in ranges of about `PART_FRAMES` frames."""
    numbers = (np.cumsum(lengths[first:] + 1) - 1) // PART_FRAMES
    starts = first + np.flatnonzero(np.diff(numbers, prepend=-1))
    return [range(*pair) for pair in pairwise([*starts.tolist(), len(lengths)])]


def _is_finished(part: Path, seeds: np.ndarray, attrs: Mapping[str, str]) -> bool:
    """Whether a file has the episodes of these seeds, made from what `attrs` name."""
    try:
        found = LatentSet(part)
    except DataError:  # missing, or damaged
        return False
    same = all(found.attrs.get(key) == value for key, value in attrs.items())
    return same and np.array_equal(found.seeds, seeds)


def _copied(latents: LatentSet) -> Iterator[EncodedEpisode]:
    return (latents.episode(number) for number in range(len(latents.lengths)))


def _encode(
    episode: Episode, encoder: Encoder, device: torch.device, bfloat16: bool
) -> EncodedEpisode:
    means, logvars = [], []
    frames, length = episode.frames, encoder.clip_length
    rows = max(1, BATCH // length)
    with spending("encoding"):
        for start in range(0, len(frames), rows):
            part = clips(frames, start, min(start + rows, len(frames)), length)
            with torch.autocast(device.type, torch.bfloat16) if bfloat16 else nullcontext():
                posterior = encoder.encode(to_input(torch.from_numpy(part).to(device)))
            means.append(posterior.mean.float().cpu())
            logvars.append(posterior.logvar.float().cpu())
    return EncodedEpisode(
        mean=torch.cat(means).numpy(),
        logvar=torch.cat(logvars).numpy(),
        actions=episode.actions,
        rewards=episode.rewards,
        terminated=episode.terminated,
        seed=episode.seed,
    )
