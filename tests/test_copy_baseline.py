"""The likelihood that a dynamics model is compared with: of a Gaussian around the last latent."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from command import ALONE, composed, run

from worldmodels.data.episodes import EpisodeSet
from worldmodels.data.latents import LatentSet
from worldmodels.files.atomic import read_json


def nll(latents: LatentSet, split: Sequence[np.ndarray], ends: Sequence[int]) -> float:
    """That of the transitions of the second episodes, by the variances of the first ones.

    Args:
        latents: of all episodes.
        split: numbers of the training and of the validation episodes.
        ends: steps of each episode that count.
    """
    squares = []
    for part in split:
        of_part = []
        for number in part:
            window = latents.read(int(number), 0, ends[number])
            mean, spread = window.mean.astype(float), np.exp(window.logvar.astype(float))
            for t in range(ends[number]):
                of_part.append((mean[t + 1] - mean[t]) ** 2 + spread[t + 1] + spread[t])
        squares.append(np.array(of_part))
    variance = squares[0].mean(axis=0)
    return float((0.5 * np.log(2 * np.pi * variance) + squares[1] / (2 * variance)).mean())


@pytest.mark.parametrize("delay", [None, 2])
def test_a_copy_is_measured_where_the_dynamics_model_is(copy: Path, delay: int | None) -> None:
    learning = ("rnn.epochs=0", "rollouts.stall_steps=12", "overwrite=true")
    ending = f"rnn.failure_termination={'null' if delay is None else delay}"
    done = run(copy, "stage=rnn", "preset=smoke", ALONE, *learning, ending)
    assert done.returncode == 0, done.stdout + done.stderr
    config = composed("preset=smoke")
    episodes = EpisodeSet.open([copy / "smoke/rollouts"], "refuse")
    split = episodes.split(config.rnn.validation_fraction, config.seed)
    latents = LatentSet(copy / "smoke/rnn/latents.h5")
    highest = [int(rewards.cumsum(dtype=float).argmax()) for rewards, _ in latents.outcomes()]
    whole = latents.lengths.tolist()
    ends = [
        # The failure begins in the step after the highest return, and `delay` steps follow that.
        min(length, at + 1 + (delay or 0) + 1) if length - 1 - at >= 12 else length
        for length, at in zip(whole, highest, strict=True)
    ]
    assert sum(ends) < sum(whole)
    table = read_json(copy / "smoke/rnn/manifest.json")["summary"]["validation_nll"]
    expected = nll(latents, split, whole if delay is None else ends)
    assert table["copy_last"] == pytest.approx(expected, rel=1e-9)
    other = nll(latents, split, ends if delay is None else whole)
    assert table["copy_last"] != pytest.approx(other, rel=1e-5)
