"""Encoding that is interrupted, and continued by another process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from worldmodels.agents.model_files import load_encoder
from worldmodels.data.episodes import EpisodeSet
from worldmodels.data.latents import LatentSet
from worldmodels.errors import Stopped
from worldmodels.models.encoder import Encoder
from worldmodels.training import encode

CPU = torch.device("cpu")
MADE_BY = {"made_by": "this command"}
NAMES = ("mean", "logvar", "actions", "rewards", "terminated")


class _Counting:
    """An encoder that counts frames, and is asked to stop after some."""

    def __init__(self, encoder: Encoder, limit: int = 10**9) -> None:
        self._encoder, self._limit, self.frames = encoder, limit, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._encoder, name)

    def to(self, device: torch.device) -> _Counting:
        return self

    def encode(self, images: torch.Tensor) -> Any:
        self.frames += len(images)
        if self.frames > self._limit:
            raise Stopped("SIGTERM")
        return self._encoder.encode(images)


@pytest.fixture
def episodes(smoke: Path, monkeypatch: pytest.MonkeyPatch) -> EpisodeSet:
    """Recorded ones, of several parts."""
    found = EpisodeSet.open([smoke / "smoke/rollouts"])
    monkeypatch.setattr(encode, "PART_FRAMES", found.num_frames // 4)
    return found


@pytest.fixture
def encoder(smoke: Path) -> Encoder:
    return load_encoder(smoke / "smoke/vae/vae.safetensors")


def encoded(
    episodes: EpisodeSet, encoder: Any, path: Path, attrs: dict[str, str] = MADE_BY
) -> LatentSet:
    encode.encode_episodes(episodes, encoder, path, attrs, CPU, bfloat16=False)
    return LatentSet(path)


def assert_equal(found: LatentSet, wanted: LatentSet) -> None:
    np.testing.assert_array_equal(found.seeds, wanted.seeds)
    for number in range(len(wanted.lengths)):
        one, other = found.episode(number), wanted.episode(number)
        for name in NAMES:
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name))


def interrupted(episodes: EpisodeSet, encoder: Encoder, path: Path) -> Path:
    """Stop within the last part; the folder of the parts."""
    stopped = _Counting(encoder, episodes.num_frames - 1)
    with pytest.raises(Stopped):
        encoded(episodes, stopped, path)
    assert not path.exists()
    return path.with_name("latents.h5.parts")


def test_an_interrupted_encoding_continues_after_its_finished_parts(
    episodes: EpisodeSet, encoder: Encoder, tmp_path: Path
) -> None:
    whole = encoded(episodes, encoder, tmp_path / "whole/latents.h5")
    path = tmp_path / "latents.h5"
    parts = interrupted(episodes, encoder, path)
    assert len(list(parts.iterdir())) >= 3
    rest = _Counting(encoder)
    assert_equal(encoded(episodes, rest, path), whole)
    assert 0 < rest.frames <= episodes.num_frames // 2
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["latents.h5", "whole"]
    assert [entry.name for entry in (tmp_path / "whole").iterdir()] == ["latents.h5"]


@pytest.mark.parametrize("changed", ["damaged", "of another command", "of other episodes"])
def test_a_part_that_is_not_of_this_encoding_is_encoded_again(
    episodes: EpisodeSet, encoder: Encoder, tmp_path: Path, changed: str
) -> None:
    path, attrs = tmp_path / "latents.h5", dict(MADE_BY)
    first, second, *_ = sorted(interrupted(episodes, encoder, path).iterdir())
    if changed == "damaged":
        first.write_bytes(first.read_bytes()[:-100])
    elif changed == "of other episodes":
        first.write_bytes(second.read_bytes())
    else:
        attrs = {"made_by": "another command"}
    rest = _Counting(encoder)
    found = encoded(episodes, rest, path, attrs)
    assert_equal(found, encoded(episodes, encoder, tmp_path / "whole/latents.h5", attrs))
    assert rest.frames > episodes.num_frames // 4
