"""Encoding: every frame of the recorded episodes to the posterior of its latent, once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path

import torch

from worldmodels.data.clips import clips
from worldmodels.data.episodes import EpisodeSet
from worldmodels.data.latents import EncodedEpisode, LatentSet, write_latents
from worldmodels.data.prefetch import prefetch
from worldmodels.data.shards import Episode
from worldmodels.models.encoder import Encoder, to_input
from worldmodels.runs.tracking import Progress
from worldmodels.system import interrupts
from worldmodels.system.spent import spending

BATCH = 256
"""Frames that are encoded at once; of clips, all frames count."""


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

    Args:
        episodes: T + 1 frames each.
        encoder: it is moved to `device` and set to evaluation mode.
        path: of the HDF5 file; mean and logvar are (T + 1, Z) float32 for each episode, see
            `worldmodels.data.latents`. It is written atomically.
        attrs: attributes of the file.
        device: to encode on.
        bfloat16: encode under autocast in bfloat16; results are stored as float32.
        known: what this encoder has encoded before; its episodes are copied.

    Raises:
        DataError: a shard is damaged.
        ArtifactError: the disk is full or not writable.
        Stopped: the process was asked to stop; nothing is written.
    """
    encoder.to(device).eval()
    with Progress("encoding", episodes.num_episodes, "episodes") as progress:

        def encoded() -> Iterator[EncodedEpisode]:
            first = 0
            if known is not None:
                first = len(known.lengths)
                for number in range(first):
                    yield known.episode(number)
                    progress.advance()
            numbers = range(first, episodes.num_episodes)
            for episode in prefetch(episodes.episode(i) for i in numbers):
                interrupts.check()
                yield _encode(episode, encoder, device, bfloat16)
                progress.advance()

        write_latents(path, encoded(), dict(attrs))


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
