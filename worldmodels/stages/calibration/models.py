"""Training, encoding, the search itself and the pictures of a run, in this process."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np

from worldmodels.agents.model_files import load_encoder
from worldmodels.agents.registry import build_dynamics, build_encoder
from worldmodels.config.policies import ActorCriticConfig
from worldmodels.config.sections import RNNConfig, VAEConfig
from worldmodels.data.episodes import EpisodeSet
from worldmodels.data.latents import EncodedEpisode, LatentSet, write_latents
from worldmodels.evolution.search import Search
from worldmodels.planning.timing import FitRate, fit_rate
from worldmodels.reporting.open_loop import open_loop
from worldmodels.reporting.video import EpisodeVideo
from worldmodels.runs.integrity import listed
from worldmodels.stages import actor_critic, controller
from worldmodels.stages.calibration.miniature import STEPS
from worldmodels.stages.calibration.setting import Setting
from worldmodels.stages.training import fit_options
from worldmodels.training.dynamics import DynamicsTask
from worldmodels.training.encode import encode_episodes
from worldmodels.training.encoder import EncoderTask
from worldmodels.training.fit import FitOptions
from worldmodels.worlds.rollout import PopulationPolicy, rollout

_LATENTS_BYTES = 2**28
"""Of the random latents that the dynamics model is trained on, at most."""
_VIDEO_FRAMES = (20, 80)
_GENERATIONS = 3


def vae(setting: Setting, episodes: EpisodeSet) -> FitRate:
    """Train the encoder on recorded episodes."""
    config, seed, fabric = setting.config.vae, setting.config.seed, setting.runtime.fabric()
    model = build_encoder(config, setting.config.env.size)
    task = EncoderTask(model, episodes, episodes.split(0.1, seed), config.batch_size, seed, fabric)
    options = _options(setting, config, None)
    return fit_rate(task, setting.folder / "vae", options, fabric, setting.seconds)


def encode(setting: Setting, episodes: EpisodeSet) -> float:
    """Encoded frames per second."""
    runtime, encoder = setting.runtime, load_encoder(setting.agent_folder / "vae.safetensors")
    path, began = setting.folder / "encoded.h5", time.perf_counter()
    encode_episodes(episodes, encoder, path, {}, runtime.device, runtime.bfloat16)
    return episodes.num_frames / (time.perf_counter() - began)


def rnn(setting: Setting, action_size: int) -> FitRate:
    """Train the dynamics model on random latents.

    There are as many rows as a batch has, as long as the windows require.
    """
    config, seed, fabric = setting.config.rnn, setting.config.seed, setting.runtime.fabric()
    size, limit = setting.config.vae.latent_size, setting.config.rollouts.max_steps
    length = min(limit, 4 * config.sequence_length) if config.sequence_length else limit
    rows = min(config.batch_size, max(2, _LATENTS_BYTES // (8 * size * length)))
    validation = max(1, rows // 4)
    rng, path = np.random.default_rng(seed), setting.folder / "latents.h5"
    episodes = (_episode(rng, length, size, action_size) for _ in range(rows + validation))
    write_latents(path, episodes, {})
    split = np.arange(rows), np.arange(rows, rows + validation)
    model = build_dynamics(config, size, action_size, {})
    task = DynamicsTask(
        model, LatentSet(path), split, config.batch_size, config.sequence_length, seed, fabric
    )
    options = _options(setting, config, config.gradient_clip)
    return fit_rate(task, setting.folder / "rnn", options, fabric, setting.seconds)


def imagination(setting: Setting) -> FitRate:
    """Train the controller of the run in miniature by gradients in its learned model."""
    context, runtime = setting.context, setting.runtime
    joined = controller.agent_config(context)
    _, task = actor_critic.prepare(context, context.inputs.models(), joined)
    options = _options(setting, setting.config.actor_critic, actor_critic.GRADIENT_CLIP)
    folder = setting.folder / "controller"
    return fit_rate(task, folder, options, runtime.fabric(), setting.seconds)


def search(setting: Setting) -> tuple[float, tuple[int, int]]:
    """Seconds of a generation's ask and tell; numbers of a candidate and of a controller."""
    config, agent = setting.config.controller, setting.agent
    features = agent.config.features.size(setting.config.vae.latent_size, agent.dynamics)
    size = agent.config.controller.size(min(features, config.pca_components or features))
    strategy = Search(size, config.population, config.sigma, 1, None, config.diagonal)
    rng, began = np.random.default_rng(0), time.perf_counter()
    for _ in range(_GENERATIONS):
        strategy.ask()
        strategy.tell(rng.standard_normal(config.population))
    return (time.perf_counter() - began) / _GENERATIONS, (size, agent.parameters.size)


def video_frame(setting: Setting) -> float:
    """Seconds of the video for each frame: the difference of two of different lengths."""
    agent, folder = setting.agent, setting.agent_folder
    dynamics = agent.dynamics if agent.config.features.state else None
    world = setting.runtime.real(
        None, folder / "vae.safetensors", folder / "rnn.safetensors", agent.config.features
    ).build()
    seconds = []
    try:
        for steps in _VIDEO_FRAMES:
            video = EpisodeVideo(0, agent.encoder, dynamics)
            policy = PopulationPolicy(
                agent.parameters[None], 1, world.feature_size, agent.config.controller, world.device
            )
            rollout(world, policy, [0], steps, video)
            began = time.perf_counter()
            video.write(setting.folder / "video.mp4")
            seconds.append(time.perf_counter() - began)
    finally:
        world.close()
    return max(0.0, (seconds[1] - seconds[0]) / (_VIDEO_FRAMES[1] - _VIDEO_FRAMES[0]))


def open_loop_step(setting: Setting) -> float:
    """Seconds of the report's open-loop predictions for each step of the longest episode."""
    agent = setting.agent
    files = listed(setting.context.run.locate("evaluate"), "episodes/shard-*.h5")
    began = time.perf_counter()
    open_loop(agent.encoder, agent.dynamics, EpisodeSet.listed(files), agent.config.frame_skip)
    return (time.perf_counter() - began) / STEPS


def _options(
    setting: Setting,
    section: VAEConfig | RNNConfig | ActorCriticConfig,
    gradient_clip: float | None,
) -> FitOptions:
    return replace(fit_options(setting.config, section, gradient_clip, ""), epochs=1)


def _episode(
    rng: np.random.Generator, steps: int, latent_size: int, action_size: int
) -> EncodedEpisode:
    """An episode of random latents."""
    terminated = np.zeros(steps, bool)
    terminated[-1] = True
    return EncodedEpisode(
        mean=rng.standard_normal((steps + 1, latent_size), np.float32),
        logvar=np.full((steps + 1, latent_size), -1.0, np.float32),
        actions=rng.standard_normal((steps, action_size), np.float32),
        rewards=np.zeros(steps, np.float32),
        terminated=terminated,
        seed=0,
    )
