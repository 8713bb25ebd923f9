"""The pipeline's own parts, as its stages run them, one function a figure."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from pathlib import Path
from unittest import mock

import numpy as np
import torch
from lightning_fabric import Fabric

from worldmodels.agents.model_files import load_dynamics, load_encoder, save_dynamics, save_encoder
from worldmodels.data.episodes import EpisodeSet
from worldmodels.data.latents import FirstLatents, LatentSet
from worldmodels.envs.action_spec import ActionBounds
from worldmodels.envs.actions import make_action_policy
from worldmodels.envs.engines import EnvSpec, make_vector_env
from worldmodels.evolution.fitness import EpisodeSpec, fitness
from worldmodels.models.controller import ControllerSpec
from worldmodels.models.features import FeatureSpec
from worldmodels.models.mdnrnn import MDNRNN
from worldmodels.models.vae import ConvVAE
from worldmodels.planning.timing import fit_rate
from worldmodels.stages.controller import MAX_DREAM_ENVS
from worldmodels.system.cores import available_cores
from worldmodels.training import cpu, fit
from worldmodels.training.dynamics import DynamicsTask
from worldmodels.training.encode import encode_episodes
from worldmodels.training.encoder import EncoderTask
from worldmodels.training.fit import FitOptions
from worldmodels.training.task import Task
from worldmodels.workers.local import LocalPool
from worldmodels.worlds.collect import CollectShard, RandomActions
from worldmodels.worlds.specs import DreamWorldSpec, RealWorldSpec, WorldSpec
from worldmodels.worlds.world import World

LOW, HIGH = (-1.0, 0.0, 0.0), (1.0, 1.0, 1.0)
NUM_ENVS, EPISODES, STEPS = 16, 64, 200
SPEC = ControllerSpec(("tanh", "half_tanh", "clipped_tanh"))
BFLOAT16 = torch.cpu._is_avx512_bf16_supported()


def prepare(folder: Path) -> None:
    """Episodes, models and latents that every measurement starts from."""
    policy = RandomActions("brownian", ActionBounds(LOW, HIGH))
    jobs = [
        CollectShard(
            folder / "rollouts" / f"shard-{start:05d}.h5",
            tuple(range(start, start + NUM_ENVS)),
            STEPS,
            policy,
            {},
        )
        for start in range(0, EPISODES, NUM_ENVS)
    ]
    world_spec = RealWorldSpec(EnvSpec())
    with LocalPool(world_spec, available_cores(), 120.0) as pool:
        list(pool.run(jobs))
    torch.manual_seed(0)
    models = {"rnn": MDNRNN(32, 3), "doom": MDNRNN(64, 1, 512, is_first=True, reward_weight=0)}
    for name, dynamics in models.items():
        with torch.no_grad():
            dynamics.head.bias[-1] = -30.0  # no episode terminates; untrained, half would at once
        zeros = np.zeros((1, dynamics.latent_size), np.float32)
        save_dynamics(folder / f"{name}.safetensors", dynamics, FirstLatents(zeros, zeros))
    vision = ConvVAE()
    save_encoder(folder / "vae.safetensors", vision)
    episodes = EpisodeSet.open([folder / "rollouts"], "refuse")
    path = folder / "latents.h5"
    encode_episodes(episodes, vision, path, {}, torch.device("cpu"), BFLOAT16)


def _frames(engine: str, processes: int, seconds: float) -> float:
    env = make_vector_env(EnvSpec(engine=engine), NUM_ENVS, processes)
    policy = make_action_policy("brownian", np.array(LOW), np.array(HIGH))
    seeds = list(range(NUM_ENVS))
    env.reset(seed=seeds)  # type: ignore[arg-type]  # gymnasium's stub
    policy.reset(seeds)
    env.step(policy.act())
    began, frames = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        _, _, terminated, truncated, _ = env.step(policy.act())
        running = ~(terminated | truncated)
        frames += int(running.sum())
        if not running.any():
            env.reset(seed=seeds)  # type: ignore[arg-type]  # gymnasium's stub
            policy.reset(seeds)
    rate = frames / (time.perf_counter() - began)
    env.close()
    return rate


def rollouts_native(folder: Path, seconds: float) -> float:
    """Frames a second of the native engine, in threads."""
    return _frames("native", available_cores(), seconds)


def rollouts_gymnasium(folder: Path, seconds: float) -> float:
    """Frames a second of Gymnasium's engine, in processes with shared memory."""
    return _frames("gymnasium", available_cores(), seconds)


def rollouts_envpool(folder: Path, seconds: float) -> float:
    """Frames a second of EnvPool's engine, in threads."""
    return _frames("envpool", available_cores(), seconds)


def _fit(task: Task, folder: Path, seconds: float, fabric: Fabric) -> float:
    options = FitOptions(1, 1e-3, 1e-3, None, 1, 30.0, 20)
    return fit_rate(task, folder, options, fabric, seconds).training


def vae(folder: Path, seconds: float) -> float:
    """Images a second of training, from disk, with checkpoints."""
    cpu.tune(available_cores())
    precision = "bf16-mixed" if BFLOAT16 else "32-true"
    fabric = Fabric(accelerator="cpu", devices=1, precision=precision)  # type: ignore[arg-type]  # a literal
    episodes = EpisodeSet.open([folder / "rollouts"], "refuse")
    model = load_encoder(folder / "vae.safetensors")
    task = EncoderTask(model, episodes, episodes.split(0.05, 1), 100, 1, fabric)
    return _fit(task, folder / f"vae-{time.time_ns()}", seconds, fabric)


def rnn(folder: Path, seconds: float) -> float:
    """Transitions a second of training, from the latents on disk, with checkpoints."""
    cpu.tune(available_cores())
    fabric = Fabric(accelerator="cpu", devices=1, precision="32-true")
    latents = LatentSet(folder / "latents.h5")
    split = EpisodeSet.open([folder / "rollouts"], "refuse").split(0.05, 1)
    model = load_dynamics(folder / "rnn.safetensors")
    task = DynamicsTask(model, latents, split, 16, 100, 1, fabric)
    return _fit(task, folder / f"rnn-{time.time_ns()}", seconds, fabric)


def vae_whole(folder: Path, seconds: float) -> float:
    """`vae`, each batch as a whole by all threads."""
    with _whole_batches():
        return vae(folder, seconds)


def rnn_whole(folder: Path, seconds: float) -> float:
    """`rnn`, each batch as a whole by all threads."""
    with _whole_batches():
        return rnn(folder, seconds)


def _whole_batches() -> AbstractContextManager[object]:
    """Training does not compute two parts of a batch side by side."""
    return mock.patch.object(fit, "side_by_side", return_value=False)


def _control(
    world_spec: WorldSpec,
    spec: ControllerSpec,
    features: int,
    num_envs: int,
    candidates: int,
    episodes: int,
    seconds: float,
) -> float:
    rng = np.random.default_rng(0)
    size = spec.size(features)
    population = (0.1 * rng.standard_normal((candidates, size))).astype(np.float32)
    with LocalPool[World](world_spec, available_cores(), 120.0) as pool:
        fitness(
            pool, population, range(episodes), EpisodeSpec(num_envs, 5, spec)
        )  # the workers start
        began, steps = time.perf_counter(), 0
        while time.perf_counter() - began < seconds:
            outcome = fitness(pool, population, range(episodes), EpisodeSpec(num_envs, 200, spec))
            steps += int(outcome.lengths.sum())
        return steps / (time.perf_counter() - began)


def real_control(folder: Path, seconds: float) -> float:
    """Steps a second of a population in the simulator, models included, on all cores."""
    return _real_control("native", folder, seconds)


def real_control_envpool(folder: Path, seconds: float) -> float:
    """The same with EnvPool's engine."""
    return _real_control("envpool", folder, seconds)


def _real_control(engine: str, folder: Path, seconds: float) -> float:
    world_spec = RealWorldSpec(
        EnvSpec(engine=engine),
        encoder=folder / "vae.safetensors",
        dynamics=folder / "rnn.safetensors",
        bfloat16=BFLOAT16,
    )
    return _control(world_spec, SPEC, 32 + 256, NUM_ENVS, 16, 4, seconds)


def dream(folder: Path, seconds: float) -> float:
    """Steps a second of a population in the learned model, on all cores."""
    return _dream(folder / "rnn.safetensors", SPEC, FeatureSpec(), seconds)


def dream_doom(folder: Path, seconds: float) -> float:
    """The same at the size of Doom: z of 64, h and c of 512."""
    spec = ControllerSpec(("tanh",), bias=False)
    return _dream(folder / "doom.safetensors", spec, FeatureSpec(("c", "h")), seconds)


def _dream(path: Path, spec: ControllerSpec, features: FeatureSpec, seconds: float) -> float:
    world_spec = DreamWorldSpec(path, 1.0, features, bfloat16=BFLOAT16)
    dynamics = load_dynamics(path)
    size = features.size(dynamics.latent_size, dynamics)
    return _control(world_spec, spec, size, MAX_DREAM_ENVS, 64, 16, seconds)
