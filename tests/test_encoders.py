"""The encoders beside the paper's: their networks, and the clips of several frames."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from exported import exported_shape
from gymnasium.vector import VectorEnv
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, distributions

from worldmodels.agents.folder import read_agent
from worldmodels.agents.model_files import load_encoder, save_encoder
from worldmodels.config.limits import LIMITS
from worldmodels.data.clips import clips, read_clip
from worldmodels.data.episodes import EpisodeSet
from worldmodels.data.frames import FrameBatches
from worldmodels.data.latents import LatentSet
from worldmodels.data.shards import Episode, write_shard
from worldmodels.envs.engines import EnvSpec, make_vector_env
from worldmodels.errors import ArtifactError
from worldmodels.files import weights
from worldmodels.models.conv3d import MAX_FRAMES, Conv3dVAE
from worldmodels.models.encoder import Posterior, to_input
from worldmodels.models.features import FeatureSpec
from worldmodels.models.resnet import MAX_BLOCKS, ResNetVAE
from worldmodels.models.vae import ConvVAE
from worldmodels.policy import AgentPolicy
from worldmodels.reporting.pictures import posterior_means
from worldmodels.training.encode import encode_episodes
from worldmodels.worlds.real import Perception, RealWorld
from worldmodels.worlds.rollout import Outcome, rollout
from worldmodels.worlds.world import Step, World

PRETRAINED = Path(__file__).resolve().parent.parent / "pretrained" / "carracing"
CPU = torch.device("cpu")
FEW = settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)

# Networks

BUILT: dict[str, Callable[[], Any]] = {
    "conv_vae": lambda: ConvVAE(5),
    "resnet": lambda: ResNetVAE(5, 32, blocks=2),
    "resnet of the smallest frames": lambda: ResNetVAE(5, 16),
    "conv3d": lambda: Conv3dVAE(5, 48),
    "conv3d of 7 frames": lambda: Conv3dVAE(5, 16, frames=7),
}


def shape(encoder: Any, rows: int) -> tuple[int, ...]:
    clip = () if encoder.clip_length == 1 else (encoder.clip_length,)
    return (rows, *clip, encoder.frame_size, encoder.frame_size, 3)


def pixels(encoder: Any, rows: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, shape(encoder, rows), dtype=torch.uint8, generator=generator)


@pytest.fixture(params=BUILT)
def encoder(request: pytest.FixtureRequest) -> Any:
    torch.manual_seed(0)
    built = BUILT[request.param]()
    for parameter in built.parameters():  # some begin at zero
        torch.nn.init.normal_(parameter, std=0.05)
    return built


def test_the_loss_is_the_squared_error_and_the_kl_above_the_free_nats(encoder: Any) -> None:
    frames = pixels(encoder, 3)
    torch.manual_seed(1)
    loss, logs = encoder.loss(frames)
    loss.backward()
    assert all(part.grad is not None and part.grad.abs().sum() > 0 for part in encoder.parameters())

    newest = frames if frames.dim() == 4 else frames[:, -1]
    inputs = torch.as_tensor(np.moveaxis(frames.numpy() / 255, -1, -3), dtype=torch.float32)
    mean, logvar = encoder.encode(inputs)
    assert mean.shape == logvar.shape == (3, 5)
    torch.manual_seed(1)
    latents = mean + torch.sqrt(logvar.exp()) * torch.randn(3, 5)
    images = encoder.decode(latents)
    assert images.shape == (3, 3, encoder.frame_size, encoder.frame_size)
    error = np.square(np.moveaxis(images.detach().numpy(), 1, -1) - newest.numpy() / 255)
    normal = distributions.Normal(mean, torch.exp(0.5 * logvar))
    kl = distributions.kl_divergence(normal, distributions.Normal(0.0, 1.0)).sum(dim=1)
    assert logs["reconstruction"].item() == pytest.approx(error.sum() / 3, rel=1e-4)
    assert logs["kl"].item() == pytest.approx(kl.mean().item(), rel=1e-3)
    floored = np.maximum(kl.detach().numpy(), 0.5 * 5).mean()
    assert loss.item() == pytest.approx(error.sum() / 3 + floored, rel=1e-4)

    weighted = type(encoder)(**{**encoder.sizes, "kl_weight": 0.25})
    weighted.load_state_dict(encoder.state_dict())
    torch.manual_seed(1)
    loss, _ = weighted.loss(frames)
    assert loss.item() == pytest.approx(error.sum() / 3 + floored / 4, rel=1e-4)


def test_a_row_does_not_depend_on_the_others(encoder: Any) -> None:
    images = to_input(pixels(encoder, 4))
    with torch.no_grad():
        together, alone = encoder.encode(images), encoder.encode(images[2:3])
    torch.testing.assert_close(together.mean[2:3], alone.mean, rtol=1e-4, atol=1e-5)


def test_it_comes_back_from_its_file(encoder: Any, tmp_path: Path) -> None:
    save_encoder(tmp_path / "vae.safetensors", encoder)
    read = load_encoder(tmp_path / "vae.safetensors")
    assert type(read) is type(encoder)
    assert read.sizes == encoder.sizes
    assert read.clip_length == encoder.clip_length
    images = to_input(pixels(encoder, 2))
    with torch.no_grad():
        assert torch.equal(read.encode(images).mean, encoder.encode(images).mean)
        latents = torch.randn(2, 5)
        assert torch.equal(read.decode(latents), encoder.decode(latents))


def test_the_class_of_a_file_is_not_taken_for_another(encoder: Any, tmp_path: Path) -> None:
    path = tmp_path / "vae.safetensors"
    save_encoder(path, encoder)
    tree = weights.load(path)
    tree["model"]["class"] = "conv3d" if isinstance(encoder, ResNetVAE) else "resnet"
    weights.save(path, tree)
    with pytest.raises(ArtifactError, match="sizes") as caught:
        load_encoder(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("length", [2, 3, 4, 5, 9])
def test_a_latent_depends_on_every_frame_of_its_clip(length: int) -> None:
    torch.manual_seed(0)
    encoder = Conv3dVAE(4, 16, frames=length)
    images = to_input(pixels(encoder, 1))
    with torch.no_grad():
        mean = encoder.encode(images).mean
        for frame in range(length):
            changed = images.clone()
            changed[:, frame] = 1 - changed[:, frame]
            assert not torch.equal(encoder.encode(changed).mean, mean)


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda: ResNetVAE(4, 72), "takes frames of a multiple of 16 pixels, not env.size=72; ch"),
        (lambda: Conv3dVAE(4, 8), "not env.size=8; choose env.size=16"),
        (lambda: Conv3dVAE(4, 0), "not env.size=0; choose env.size=16"),
        (lambda: ResNetVAE(4, 64, blocks=0), "blocks=0 is not possible; choose 1 to 16"),
        (lambda: ResNetVAE(4, 64, blocks=10**9), "blocks=1000000000 is not possible"),
        (lambda: Conv3dVAE(4, 64, frames=1), "frames=1 is not possible; choose 2 to 64"),
    ],
)
def test_sizes_that_the_arithmetic_does_not_allow(build: Callable[[], Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        build()


def test_the_bounds_of_the_keys_are_those_of_the_encoders() -> None:
    assert LIMITS["vae.blocks"].most == MAX_BLOCKS
    assert LIMITS["vae.frames"].most == MAX_FRAMES


@pytest.mark.system
def test_an_encoder_of_clips_is_exported(tmp_path: Path) -> None:
    torch.manual_seed(0)
    agent = replace(read_agent(PRETRAINED), encoder=Conv3dVAE(32, 64, frames=3).eval())
    assert exported_shape(agent, tmp_path / "encoder.onnx") == [3, 3, 64, 64]


# Clips of recorded episodes


def recorded(folder: Path, lengths: list[int], side: int = 16) -> EpisodeSet:
    """Frame t of episode i holds (i, t) in its first pixel, and noise elsewhere."""
    for path in folder.glob("*.h5"):
        path.unlink()
    rng = np.random.default_rng(0)
    episodes = []
    for index, steps in enumerate(lengths):
        frames = rng.integers(0, 256, (steps + 1, side, side, 3), np.uint8)
        frames[:, 0, 0, 0], frames[:, 0, 0, 1] = index, np.arange(steps + 1)
        actions, rewards = np.zeros((steps, 2), np.float32), np.zeros(steps, np.float32)
        ends = np.arange(steps) == steps - 1
        episodes.append(Episode(frames, actions, rewards, ends, np.zeros(steps, bool), index))
    for number in range(0, len(episodes), 3):
        write_shard(folder / f"shard-{number:05d}.h5", episodes[number : number + 3], {})
    return EpisodeSet.open([folder])


def cut(frames: np.ndarray, time: int, length: int) -> np.ndarray:
    """The clip that ends at `time`: earlier frames one after another, the first one repeated."""
    found = []
    for back in range(length - 1, -1, -1):
        found.append(frames[time - back] if time >= back else frames[0])
    return np.stack(found)


@FEW
@given(
    st.lists(st.integers(1, 60), min_size=1, max_size=8),
    st.integers(2, 24),
    st.integers(1, 40),
    st.booleans(),
    st.booleans(),
)
def test_batches_of_clips_are_those_of_a_plain_loop(
    tmp_path: Path, lengths: list[int], length: int, size: int, shuffle: bool, small: bool
) -> None:
    episodes = recorded(tmp_path, lengths)
    indices = np.arange(len(lengths))
    with pytest.MonkeyPatch.context() as patch:
        if small:  # a run of frames in each pool
            patch.setattr("worldmodels.data.frames.POOL_BYTES", 1)
        batches = FrameBatches(episodes, indices, size, 7, shuffle, length)
        images = FrameBatches(episodes, indices, size, 7, shuffle)
    epoch = list(batches.epoch(3))
    whole = [episodes.episode(int(index)).frames for index in indices]
    for batch, frames in zip(epoch, images.epoch(3), strict=True):
        assert batch.dtype == np.uint8
        np.testing.assert_array_equal(batch[:, -1], frames)  # in the order of images
        for clip in batch:
            index, time = (int(part) for part in clip[-1, 0, 0, :2])
            np.testing.assert_array_equal(clip, cut(whole[index], time, length))
    for start in (1, len(epoch) // 2, len(epoch)):
        rest = list(batches.epoch(3, start))
        assert len(rest) == max(0, len(epoch) - start)
        for one, two in zip(epoch[start:], rest, strict=True):
            np.testing.assert_array_equal(one, two)


@FEW
@given(st.lists(st.integers(1, 60), min_size=1, max_size=4), st.integers(2, 80))
def test_clips_of_an_episode_are_those_of_a_plain_loop(
    tmp_path: Path, lengths: list[int], length: int
) -> None:
    episodes = recorded(tmp_path, lengths)
    for index, steps in enumerate(lengths):  # many episodes are shorter than a clip
        frames = episodes.episode(index).frames
        for start, stop in ((0, steps + 1), (steps // 2, steps)):
            wanted = [cut(frames, time, length) for time in range(start, stop)]
            found = clips(frames, start, stop, length)
            np.testing.assert_array_equal(found, np.reshape(wanted, found.shape))
        for time in (0, steps // 2, steps):
            found = read_clip(episodes, index, time, length)
            np.testing.assert_array_equal(found[0], cut(frames, time, length))


def test_an_episode_is_encoded_clip_by_clip(tmp_path: Path) -> None:
    torch.manual_seed(0)
    episodes, encoder = recorded(tmp_path, [2, 5, 300]), Conv3dVAE(4, 16, frames=6)
    encode_episodes(episodes, encoder, tmp_path / "latents.h5", {}, CPU, bfloat16=False)
    latents = LatentSet(tmp_path / "latents.h5")
    for index, steps in enumerate((2, 5, 300)):
        frames = episodes.episode(index).frames
        wanted = np.stack([cut(frames, time, 6) for time in range(steps + 1)])
        with torch.no_grad():
            mean = encoder.encode(to_input(torch.from_numpy(wanted))).mean
            reported = posterior_means(encoder, frames)
        found = torch.from_numpy(latents.episode(index).mean)
        torch.testing.assert_close(found, mean, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(reported, mean, rtol=1e-4, atol=1e-5)


# Clips of running environments


class Watching(Conv3dVAE):
    """Keeps the clips that it is given."""

    seen: list[np.ndarray]

    def encode(self, images: Tensor) -> Posterior:
        self.seen.append((images.float() * 255).round().byte().movedim(-3, -1).numpy())
        return super().encode(images)


def watching(latent: int = 4, side: int = 16, frames: int = 3) -> Watching:
    torch.manual_seed(0)
    encoder = Watching(latent, side, frames=frames).eval()
    encoder.seen = []
    return encoder


def numbered(num_envs: int) -> VectorEnv[Any, Any, Any]:
    spec = EnvSpec(id="picture_env:Numbered-v0", engine="gymnasium", crop_rows=None, size=16)
    return make_vector_env(spec, num_envs)


class Still:
    """A policy that does nothing, and a recorder of the latents of each environment."""

    def __init__(self, count: int) -> None:
        self.count, self.latents = count, [list[Tensor]() for _ in range(count)]

    def act(self, features: Tensor) -> Tensor:
        return torch.zeros(len(features), 2)

    def keep(self, mask: np.ndarray) -> None:
        pass

    def begin(self, world: World) -> None:
        self.record(np.arange(self.count), torch.empty(0), None, world)

    def record(self, indices: np.ndarray, actions: Tensor, step: Step | None, world: World) -> None:
        assert isinstance(world, RealWorld)
        for row, index in enumerate(indices):
            self.latents[index].append(world.latents[row])


def played(world: RealWorld, seeds: list[int]) -> tuple[Outcome, list[Tensor]]:
    """The outcome and the latents (T + 1, Z) of each episode."""
    still = Still(len(seeds))
    outcome = rollout(world, still, seeds, 20, still)
    return outcome, [torch.stack(rows) for rows in still.latents]


def test_environments_have_the_clips_that_each_has_alone() -> None:
    encoder, seeds = watching(), [4, 1, 7, 2, 4]
    world = RealWorld(numbered, Perception(encoder, None, FeatureSpec((), sampled=False)))
    played(world, [9] * 5)  # what an earlier batch leaves behind
    encoder.seen.clear()
    outcome, together = played(world, seeds)
    np.testing.assert_array_equal(outcome.lengths, seeds)
    running = seeds
    for time, found in enumerate(encoder.seen):
        running = [seed for seed in running if seed >= time]
        past = [max(time - back, 0) for back in (2, 1, 0)]
        wanted = [[(seed, step, 0) for step in past] for seed in running]
        np.testing.assert_array_equal(found[:, :, 0, 0], wanted)
        assert (found == found[:, :, :1, :1]).all()
    alone = RealWorld(numbered, Perception(encoder, None, FeatureSpec((), sampled=False)))
    for seed, latents in zip(seeds, together, strict=True):
        _, (own,) = played(alone, [seed])
        torch.testing.assert_close(latents, own, rtol=1e-4, atol=1e-5)


def test_control_and_data_encode_the_same(tmp_path: Path) -> None:
    encoder = watching(frames=5)
    world = RealWorld(numbered, Perception(encoder, None, FeatureSpec((), sampled=False)))
    _, (found,) = played(world, [11])
    frames = np.stack([np.full((16, 16, 3), (11, step, 0), np.uint8) for step in range(12)])
    with torch.no_grad():
        wanted = posterior_means(encoder, frames)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


def test_a_policy_begins_the_clips_of_the_rows_that_are_reset() -> None:
    encoder = watching(32, 64, frames=4)
    agent = replace(read_agent(PRETRAINED), encoder=encoder)
    policy = AgentPolicy(agent, PRETRAINED, CPU, seed=0)
    starts = np.zeros(3, int)
    for time in range(9):
        if time in (2, 5):
            mask = np.array([time == 2, time == 5, True])
            policy.reset(mask)
            starts[mask] = time
        frames = np.full((3, 64, 64, 3), time, np.uint8)
        frames[..., 0] = np.arange(3)[:, None, None]
        policy.act(frames)
        wanted = [
            [(row, max(time - back, start)) for back in (3, 2, 1, 0)]
            for row, start in enumerate(starts)
        ]
        np.testing.assert_array_equal(encoder.seen[-1][:, :, 0, 0, :2], wanted)
    policy.reset()
    policy.act(np.full((64, 64, 3), 7, np.uint8))
    np.testing.assert_array_equal(encoder.seen[-1], np.full((1, 4, 64, 64, 3), 7))
