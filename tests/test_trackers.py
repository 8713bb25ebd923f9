"""Pictures and videos of a training: what trackers receive, read back from their files."""

import io
import json
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from command import ALONE, composed
from lightning_fabric import Fabric
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from waiting import wait_for

from worldmodels import trackers
from worldmodels.config.choices import LoggerMode
from worldmodels.config.execution import LoggerConfig
from worldmodels.data.episodes import EpisodeSet
from worldmodels.data.shards import Episode, write_shard
from worldmodels.files import images
from worldmodels.models.vae import ConvVAE
from worldmodels.reporting.snapshots import encoder_snapshot
from worldmodels.runs.artifacts import Run
from worldmodels.runs.tracking import MetricsLog
from worldmodels.stages import rnn
from worldmodels.stages.context import Context
from worldmodels.training.encoder import EncoderTask
from worldmodels.training.fit import FitOptions, fit

PICTURE = np.random.default_rng(0).integers(0, 256, (1, 6, 9, 3), np.uint8)
VIDEO = np.random.default_rng(1).integers(0, 256, (5, 6, 9, 3), np.uint8)


def draw() -> dict[str, np.ndarray]:
    return {"vae/picture": PICTURE, "vae/video": VIDEO}


def events(folder: Path) -> EventAccumulator:
    """The TensorBoard event files of a folder, all images of them."""
    found = EventAccumulator(str(folder), size_guidance={"images": 0, "scalars": 0})
    found.Reload()
    return found


def test_tensorboard_gets_pictures_videos_and_curves_against_steps(tmp_path: Path) -> None:
    tracker = trackers.start(LoggerConfig(name="tensorboard"), tmp_path, "mine/vae", {})
    with MetricsLog(tmp_path / "metrics.csv", tracker, draw=draw) as log:
        for generation in (1, 2):
            log.env_steps = 1000 * generation
            log.log(generation, {"selection/mean": 10.0 * generation, "train/loss": 1.0})
            log.show(generation)
    found = events(tmp_path)
    assert [(e.step, e.value) for e in found.Scalars("env_steps/selection/mean")] == [
        (1000, 10.0),
        (2000, 20.0),
    ]
    assert "env_steps/train/loss" not in found.Tags()["scalars"]
    assert all(0 <= event.value < 1 for event in found.Scalars(trackers.HOURS))
    assert all(0 < event.value < 1000 for event in found.Scalars("system/memory_gb"))
    assert found.Tags()["images"] == ["vae/picture", "vae/video"]
    for name, frames in draw().items():
        shown = found.Images(name)
        assert [image.step for image in shown] == [1, 2]
        with Image.open(io.BytesIO(shown[1].encoded_image_string)) as image:
            assert (image.width, image.height) == (9, 6)
            assert getattr(image, "n_frames", 1) == len(frames)
            if len(frames) == 1:
                np.testing.assert_array_equal(np.asarray(image), frames[0])


def test_a_video_repeats_and_keeps_its_pace() -> None:
    with Image.open(io.BytesIO(images.gif(VIDEO, trackers.FRAMES_PER_SECOND))) as video:
        assert (video.format, video.info["loop"], video.info["duration"]) == ("GIF", 0, 100)


def wandb_rows(folder: Path) -> list[dict[str, Any]]:
    """The rows of an offline W&B run: records of `wandb.proto` in blocks of LevelDB's log format.

    wandb has no reader in Python; ``wandb sync`` reads the file in Go.
    """
    messages: Any = import_module("wandb.proto.wandb_internal_pb2")  # made when it is imported
    (path,) = folder.glob("wandb/offline-run-*/*.wandb")
    content, position, rows, pending = path.read_bytes(), 7, [], b""
    while position + 7 <= len(content):
        left = 32768 - position % 32768
        if left < 7:  # the end of a block is filled with zeros
            position += left
            continue
        length = int.from_bytes(content[position + 4 : position + 6], "little")
        kind = content[position + 6]
        pending += content[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):  # whole, or the last part
            record = messages.Record.FromString(pending)
            pending = b""
            if record.HasField("history"):
                items = record.history.item
                names = (item.key or "/".join(item.nested_key) for item in items)
                values = (json.loads(item.value_json) for item in items)
                rows.append(dict(zip(names, values, strict=True)))
    return rows


def test_wandb_offline_gets_pictures_and_videos_in_their_step(tmp_path: Path) -> None:
    logger = LoggerConfig(name="wandb", mode=LoggerMode.offline)
    tracker = trackers.start(logger, tmp_path, "mine/vae", {"seed": 3})
    with MetricsLog(tmp_path / "metrics.csv", tracker, draw=draw) as log:
        for step in (3, 6):
            log.log(step, {"validation/loss": 0.5})
            log.show(step)
    wait_for(lambda: len(wandb_rows(tmp_path)) == 2)  # another process writes the file
    rows = {row["_step"]: row for row in wandb_rows(tmp_path)}
    assert rows.keys() == {3, 6}
    for row in rows.values():
        assert row["validation/loss"] == 0.5
        assert row["vae/picture/_type"] == "image-file"
        assert row["vae/video/_type"] == "video-file"
    (run,) = tmp_path.glob("wandb/offline-run-*")
    with Image.open(run / "files" / rows[6]["vae/picture/path"]) as image:
        np.testing.assert_array_equal(np.asarray(image), PICTURE[0])
    with Image.open(run / "files" / rows[6]["vae/video/path"]) as video:
        assert getattr(video, "n_frames", 1) == len(VIDEO)


class Scalars:
    """A tracker that takes no pictures."""

    Options: ClassVar[type] = LoggerConfig

    def log(self, step: int, values: Mapping[str, float]) -> None:
        pass

    def close(self) -> None:
        pass


class Album(Scalars):
    """A tracker that takes pictures."""

    def __init__(self) -> None:
        self.shown: list[tuple[int, str]] = []

    def show(self, step: int, name: str, frames: np.ndarray) -> None:
        self.shown.append((step, name))


@pytest.mark.parametrize("tracker", [None, Scalars()])
def test_nothing_is_drawn_without_a_tracker_that_takes_pictures(
    tmp_path: Path, tracker: trackers.Tracker | None
) -> None:
    drawn: list[int] = []

    def count() -> dict[str, np.ndarray]:
        drawn.append(1)
        return draw()

    with MetricsLog(tmp_path / "metrics.csv", tracker, draw=count) as log:
        log.show(1)
    assert not drawn
    with MetricsLog(tmp_path / "metrics.csv", Album(), draw=count) as log:
        log.show(1)
    assert drawn


def test_pictures_that_cannot_be_made_end_neither_the_stage_nor_the_metrics(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> dict[str, np.ndarray]:
        raise MemoryError("no memory")

    tracker = trackers.start(LoggerConfig(name="tensorboard"), tmp_path, "mine/vae", {})
    with MetricsLog(tmp_path / "metrics.csv", tracker, draw=fail) as log:
        for step in (1, 2):
            log.log(step, {"train/loss": 1.0})
            log.show(step)
    assert len(events(tmp_path).Scalars("train/loss")) == 2
    (warning,) = caplog.messages
    assert "pictures cannot be made (MemoryError: no memory)" in warning


@pytest.fixture(scope="module")
def episodes(tmp_path_factory: pytest.TempPathFactory) -> EpisodeSet:
    folder, rng = tmp_path_factory.mktemp("rollouts"), np.random.default_rng(0)
    ends, actions = np.arange(9) == 8, np.zeros((9, 3), np.float32)
    written = [
        Episode(
            frames=rng.integers(0, 256, (10, 64, 64, 3), np.uint8),
            actions=actions,
            rewards=actions[:, 0],
            terminated=ends,
            truncated=np.zeros(9, bool),
            seed=seed,
        )
        for seed in range(4)
    ]
    write_shard(folder / "shard-00000.h5", written, {})
    return EpisodeSet.open([folder])


OPTIONS = FitOptions(3, 1e-3, 1e-3, None, seed=1, checkpoint_seconds=60.0, log_every=1)


class Stops(Album):
    """Ends the training in a step, as a process that is killed there."""

    def __init__(self, step: int) -> None:
        super().__init__()
        self._step = step

    def log(self, step: int, values: Mapping[str, float]) -> None:
        if step == self._step:
            raise KeyboardInterrupt


def train(episodes: EpisodeSet, folder: Path, tracker: Album | None) -> dict[str, Any]:
    """The weights after `OPTIONS.epochs` epochs of a small VAE."""
    fabric = Fabric(accelerator="cpu", devices=1, precision="32-true")
    torch.manual_seed(0)
    model, split = ConvVAE(4), episodes.split(0.25, 1)
    task = EncoderTask(model, episodes, split, 5, 1, fabric)
    shown = encoder_snapshot(model, episodes, split[1], fabric.device)
    with MetricsLog(folder / "metrics.csv", tracker, draw=shown) as log:
        fit(task, folder, OPTIONS, fabric, log)
    return {name: value.numpy().copy() for name, value in model.state_dict().items()}


@pytest.mark.system
def test_a_training_with_pictures_has_the_weights_of_one_without(
    episodes: EpisodeSet, tmp_path: Path
) -> None:
    without = train(episodes, tmp_path / "without", None)
    album = Album()
    np.testing.assert_equal(train(episodes, tmp_path / "with", album), without)
    names = ("vae/reconstructions", "vae/prior_samples")
    assert album.shown == [(step, name) for step in (6, 12, 18) for name in names]


@pytest.mark.parametrize("step", [8, 12])
def test_a_training_that_is_killed_and_resumed_gives_each_picture_once(
    episodes: EpisodeSet, tmp_path: Path, step: int
) -> None:
    """In the second epoch; and at its end, before it is saved."""
    killed, resumed = Stops(step), Album()
    with pytest.raises(KeyboardInterrupt):
        train(episodes, tmp_path, killed)
    train(episodes, tmp_path, resumed)
    assert [step for step, name in killed.shown if name == "vae/prior_samples"] == [6]
    assert [step for step, name in resumed.shown if name == "vae/prior_samples"] == [12, 18]


def test_a_round_has_a_name_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names: list[str] = []
    monkeypatch.setattr(trackers, "start", lambda logger, folder, name, config: names.append(name))
    config = composed("preset=smoke", f"data={tmp_path}")
    for run in ("rounds", "rounds/round-1"):
        context = Context(config, Run(tmp_path / run))
        with context.begin("vae", {}, ()) as folder:
            context.tracker(folder)
    assert names == ["rounds/vae", "rounds/round-1/vae"]


def test_each_model_of_a_stage_has_a_name_of_its_own(
    smoke: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named: list[tuple[str, Path]] = []

    def start(logger: LoggerConfig, folder: Path, name: str, config: object) -> None:
        named.append((name, folder))

    monkeypatch.setattr(trackers, "start", start)
    words = ("stage=rnn", "preset=smoke", ALONE, "rnn.members=2", "rnn.epochs=1")
    config = composed(*words, f"data={tmp_path}")
    base = Run(smoke / "smoke")
    rnn.run(Context(config, Run(tmp_path / "mine", base)))
    names = ["mine/rnn", "mine/rnn/member_2", "mine/rnn/single_gaussian"]
    assert named == [(name, tmp_path / name) for name in names]
