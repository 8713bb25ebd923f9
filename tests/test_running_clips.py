"""Clips of running environments."""

import torch

from worldmodels.worlds.clips import Clips


def test_clips_of_some_environments_stay_as_they_are() -> None:
    frames = torch.arange(6, dtype=torch.uint8).reshape(3, 2, 1, 1, 1).expand(3, 2, 4, 4, 3)
    clips = Clips(3)
    assert clips.add(frames[0], torch.tensor([True, True]))[:, :, 0, 0, 0].tolist() == [
        [0, 0, 0],
        [1, 1, 1],
    ]
    none = torch.zeros(2, dtype=torch.bool)
    assert clips.add(frames[1], none, torch.tensor([True, False]))[0, :, 0, 0, 0].tolist() == [
        *(0, 0, 2),
    ]
    assert clips.add(frames[2], none)[:, :, 0, 0, 0].tolist() == [[0, 2, 4], [1, 1, 5]]
