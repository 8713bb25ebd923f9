"""The loops most reimplementations have: one episode at a time, float32, batch 1.

The baseline of ``throughput.py``, written with ordinary PyTorch and Gymnasium, with PyTorch's
default number of threads. They do what the best-known PyTorch
reimplementation does (https://github.com/ctallec/world-models): latents come from a call of the
whole VAE, decoder included, in every batch of the RNN and at every step of control.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import gymnasium
import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F

from worldmodels.data.episodes import EpisodeSet

LATENT, HIDDEN, MIXTURES, ACTIONS = 32, 256, 5, 3
BATCH, SEQUENCES, STEPS = 32, 16, 32


class VAE(nn.Module):
    """The paper's network as its PyTorch ports write it."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            *(nn.Conv2d(3, 32, 4, stride=2), nn.ReLU()),
            *(nn.Conv2d(32, 64, 4, stride=2), nn.ReLU()),
            *(nn.Conv2d(64, 128, 4, stride=2), nn.ReLU()),
            *(nn.Conv2d(128, 256, 4, stride=2), nn.ReLU(), nn.Flatten()),
        )
        self.mean, self.logstd = nn.Linear(1024, LATENT), nn.Linear(1024, LATENT)
        self.expand = nn.Linear(LATENT, 1024)
        self.decoder = nn.Sequential(
            *(nn.ConvTranspose2d(1024, 128, 5, stride=2), nn.ReLU()),
            *(nn.ConvTranspose2d(128, 64, 5, stride=2), nn.ReLU()),
            *(nn.ConvTranspose2d(64, 32, 6, stride=2), nn.ReLU()),
            *(nn.ConvTranspose2d(32, 3, 6, stride=2), nn.Sigmoid()),
        )

    def encode(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log deviation (batch, latent) of images (batch, 3, 64, 64)."""
        hidden = self.encoder(images)
        return self.mean(hidden), self.logstd(hidden)

    def decode(self, latents: Tensor) -> Tensor:
        """Images (batch, 3, 64, 64) of latents (batch, latent)."""
        images: Tensor = self.decoder(F.relu(self.expand(latents))[..., None, None])
        return images

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Reconstructions of images (batch, 3, 64, 64), and mean and log deviation of latents."""
        mean, logstd = self.encode(images)
        return self.decode(mean + logstd.exp() * torch.randn_like(mean)), mean, logstd


def to_tensor(frames: np.ndarray) -> Tensor:
    """uint8 (batch, 64, 64, 3) to float (batch, 3, 64, 64)."""
    return torch.from_numpy(frames).permute(0, 3, 1, 2).contiguous().float() / 255


def repeat(work: Callable[[], int], seconds: float) -> float:
    """Call `work` for some seconds, after one call to warm up; units a second."""
    work()
    began, done = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        done += work()
    return done / (time.perf_counter() - began)


class _CarRacing:
    """CarRacing, frame by frame, cropped and reduced with Pillow."""

    def __init__(self) -> None:
        self.env = gymnasium.make("CarRacing-v3")
        self.seed = 0
        self.reset()

    def reset(self) -> None:
        frame, _ = self.env.reset(seed=self.seed)
        self.seed += 1
        self.frame = self._reduce(frame)

    def step(self, action: np.ndarray) -> None:
        frame, _, terminated, truncated, _ = self.env.step(action)
        self.frame = self._reduce(frame)
        if terminated or truncated:
            self.reset()

    @staticmethod
    def _reduce(frame: np.ndarray) -> np.ndarray:
        return np.asarray(Image.fromarray(frame[:84]).resize((64, 64), Image.Resampling.BILINEAR))


def rollouts(folder: Path, seconds: float) -> float:
    """Frames a second of random actions."""
    env, rng = _CarRacing(), np.random.default_rng(0)

    def step() -> int:
        env.step(rng.uniform((-1, 0, 0), 1).astype(np.float32))
        return 1

    return repeat(step, seconds)


def vae(folder: Path, seconds: float) -> float:
    """Images a second of training, from frames in memory."""
    episodes = EpisodeSet.open([folder / "rollouts"], "refuse")
    frames = np.concatenate([episodes.episode(i).frames for i in range(8)])
    rng, model = np.random.default_rng(0), VAE()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)

    def train() -> int:
        images = to_tensor(frames[rng.integers(0, len(frames), BATCH)])
        output, mean, logstd = model(images)
        kl = -0.5 * (1 + 2 * logstd - mean.square() - (2 * logstd).exp()).sum()
        loss = (F.mse_loss(output, images, reduction="sum") + kl) / BATCH
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return BATCH

    return repeat(train, seconds)


def _gmm_loss(latents: Tensor, output: Tensor) -> Tensor:
    mean, logstd, logits = output.view(*output.shape[:-1], 3, LATENT, MIXTURES).unbind(-3)
    normal = torch.distributions.Normal(mean, logstd.exp())
    mixed: Tensor = normal.log_prob(latents.unsqueeze(-1)) + F.log_softmax(logits, -1)
    return -torch.logsumexp(mixed, -1).mean()


def rnn(folder: Path, seconds: float) -> float:
    """Transitions a second of training; a batch encodes the frames of its windows."""
    episodes = EpisodeSet.open([folder / "rollouts"], "refuse")
    loaded = [episodes.episode(i) for i in range(8)]
    rng, vision = np.random.default_rng(0), VAE()
    lstm = nn.LSTM(LATENT + ACTIONS, HIDDEN, batch_first=True)
    head = nn.Linear(HIDDEN, 3 * LATENT * MIXTURES)
    optimizer = torch.optim.RMSprop([*lstm.parameters(), *head.parameters()], lr=1e-3)

    def encode(frames: np.ndarray) -> Tensor:
        with torch.no_grad():
            _, mean, logstd = vision(to_tensor(frames))
        latents: Tensor = mean + logstd.exp() * torch.randn_like(mean)
        return latents.view(SEQUENCES, STEPS, LATENT)

    def train() -> int:
        chosen = rng.integers(0, len(loaded), SEQUENCES)
        starts = [rng.integers(0, len(loaded[i].actions) - STEPS) for i in chosen]
        pairs = list(zip(chosen, starts, strict=True))
        now = encode(np.concatenate([loaded[i].frames[s : s + STEPS] for i, s in pairs]))
        then = encode(np.concatenate([loaded[i].frames[s + 1 : s + STEPS + 1] for i, s in pairs]))
        actions = torch.from_numpy(np.stack([loaded[i].actions[s : s + STEPS] for i, s in pairs]))
        loss = _gmm_loss(then, head(lstm(torch.cat([now, actions], -1))[0]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return SEQUENCES * STEPS

    return repeat(train, seconds)


@torch.no_grad()
def real_control(folder: Path, seconds: float) -> float:
    """Steps a second of one worker with VAE, MDN-RNN and controller, on one thread."""
    torch.set_num_threads(1)
    env, vision = _CarRacing(), VAE()
    cell = nn.LSTMCell(LATENT + ACTIONS, HIDDEN)
    controller = nn.Linear(LATENT + HIDDEN, ACTIONS)
    state = (torch.zeros(1, HIDDEN), torch.zeros(1, HIDDEN))

    def step() -> int:
        nonlocal state
        _, mean, logstd = vision(to_tensor(env.frame[None]))
        latent = mean + logstd.exp() * torch.randn_like(mean)
        action = torch.tanh(controller(torch.cat([latent, state[0]], -1)))
        action[:, 1:] = (action[:, 1:] + 1) / 2
        state = cell(torch.cat([latent, action], -1), state)
        env.step(action.numpy()[0])
        return 1

    return repeat(step, seconds)


def dream(folder: Path, seconds: float) -> float:
    """Steps a second of one episode in the learned model, with its controller."""
    return _dream(LATENT, ACTIONS, HIDDEN, seconds)


def dream_doom(folder: Path, seconds: float) -> float:
    """The same at the size of Doom."""
    return _dream(64, 1, 512, seconds)


@torch.no_grad()
def _dream(latents: int, actions: int, hidden: int, seconds: float) -> float:
    cell, head = nn.LSTMCell(latents + actions, hidden), nn.Linear(hidden, 3 * latents * MIXTURES)
    controller = nn.Linear(latents + hidden, actions)
    latent = torch.zeros(1, latents)
    state = (torch.zeros(1, hidden), torch.zeros(1, hidden))

    def step() -> int:
        nonlocal latent, state
        action = torch.tanh(controller(torch.cat([latent, state[0]], -1)))
        state = cell(torch.cat([latent, action], -1), state)
        mean, logstd, logits = head(state[0]).view(3, latents, MIXTURES).unbind(0)
        chosen = torch.multinomial(torch.softmax(logits, -1), 1)
        std = logstd.gather(1, chosen).exp()
        latent = (mean.gather(1, chosen) + std * torch.randn(latents, 1)).T
        return 1

    return repeat(step, seconds)
