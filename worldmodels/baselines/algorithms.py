"""The algorithms of Stable-Baselines3: how they are built, and their state as tensors and numbers.

Imported where a baseline is trained or evaluated only: Stable-Baselines3 is optional.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box
from stable_baselines3 import DQN, PPO, SAC
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.torch_layers import NatureCNN
from stable_baselines3.common.type_aliases import Schedule
from stable_baselines3.common.vec_env import VecEnv
from torch import Tensor

from worldmodels.baselines.actions import Actions
from worldmodels.baselines.vec_env import observation_space
from worldmodels.errors import ArtifactError, ConfigError
from worldmodels.files import weights
from worldmodels.files.atomic import atomic_path

ALGORITHMS: dict[str, type[BaseAlgorithm]] = {"ppo": PPO, "dqn": DQN, "sac": SAC}

DEFAULTS: dict[str, dict[str, Any]] = {
    "ppo": {"n_steps": 128, "batch_size": 256, "n_epochs": 4},
    "dqn": {
        "buffer_size": 50_000,  # steps of 32 kB each
        "learning_starts": 10_000,
        "train_freq": 1,
        "gradient_steps": 4,
    },
    "sac": {
        "buffer_size": 50_000,
        "learning_starts": 10_000,
        "train_freq": 1,
        "gradient_steps": 4,
    },
}
"""Arguments that differ from those of Stable-Baselines3; ``baseline.options`` may change them."""

_OWN = {
    *("policy", "env", "learning_rate", "seed", "device", "verbose", "tensorboard_log"),
    *("replay_buffer_class", "rollout_buffer_class", "action_noise", "optimize_memory_usage"),
    *("use_sde", "sde_sample_freq", "use_sde_at_warmup"),
    "policy_kwargs",
}
"""Arguments that no option gives: those of `build`, classes, and noise that depends on the state,
whose networks `PolicySpec` does not build."""


class MixedPrecisionCNN(NatureCNN):
    """The convolutions of Stable-Baselines3 under autocast in bfloat16.

    Its features are float32 again: distributions, values and losses are computed in that.
    """

    def forward(self, observations: Tensor) -> Tensor:
        """Features (N, F) float32 of frames (N, K, H, W) float32 in [0, 1]."""
        with torch.autocast(observations.device.type, torch.bfloat16):
            features: Tensor = super().forward(observations)
        return features.float()


@dataclass(frozen=True)
class PolicySpec:
    """What the network of a policy is built from.

    Args:
        algorithm: a name of `ALGORITHMS`.
        actions: of the policy.
        frame_stack: it observes so many grey frames; None: features.
        size: side of the frames, or number of features.
        options: further arguments of its network, ``policy_kwargs`` of Stable-Baselines3.
        bfloat16: frames are encoded in bfloat16, with weights in float32.
    """

    algorithm: str
    actions: Actions
    frame_stack: int | None
    size: int
    options: Mapping[str, Any] = field(default_factory=dict)
    bfloat16: bool = False

    @property
    def network(self) -> str:
        """Stable-Baselines3's name of the network: convolutions for frames."""
        return "MlpPolicy" if self.frame_stack is None else "CnnPolicy"

    @property
    def network_options(self) -> dict[str, Any]:
        """All arguments of the network, ``policy_kwargs`` of Stable-Baselines3."""
        options = dict(self.options)
        if self.bfloat16 and self.frame_stack is not None:
            options["features_extractor_class"] = MixedPrecisionCNN
            if self.algorithm != "sac":
                # Its default, which it changes for any class of features but its own.
                options.setdefault("net_arch", [])
        return options

    def build(self) -> BasePolicy:
        """The network, with random weights."""
        space: Any = Box(-np.inf, np.inf, (self.size,), np.float32)
        if self.frame_stack is not None:
            frame = Box(0, 255, (self.size, self.size, 3), np.uint8)
            space = observation_space(frame, self.frame_stack)
        network = ALGORITHMS[self.algorithm].policy_aliases[self.network]
        return network(space, self.actions.space, lr_schedule=lambda _: 0.0, **self.network_options)


def check_options(algorithm: str, options: Mapping[str, Any]) -> None:
    """Raise `ConfigError` for options that the algorithm does not take."""
    known = set(inspect.signature(ALGORITHMS[algorithm].__init__).parameters) - {"self"} - _OWN
    known = {name for name in known if not name.startswith("_")}
    for name in options:
        if name not in known:
            raise ConfigError(
                f"baseline.options.{name}: {algorithm} of Stable-Baselines3 takes no such argument"
                f" here; it takes {', '.join(sorted(known))}"
            )


def _check_network(spec: PolicySpec) -> None:
    """Raise `ConfigError` for options of which no network can be built.

    Its errors are told from those of a device: it is built on the CPU.
    """
    try:
        spec.build()
    except (TypeError, ValueError, AssertionError, AttributeError, RuntimeError) as error:
        raise ConfigError(
            f"baseline.options.policy_kwargs={dict(spec.options)}: {spec.algorithm} builds no such"
            f" network: {' '.join(str(error).split())}"
        ) from error


@dataclass(frozen=True)
class Segment:
    """A part of a training, which begins with new episodes.

    Args:
        number: from 0.
        begin: steps of all environments before it.
        end: steps at its end, at least.
        total: steps of the whole training.
    """

    number: int
    begin: int
    end: int
    total: int

    def scheduled(self, schedule: Schedule) -> Schedule:
        """A schedule over the whole training as one over this segment.

        Stable-Baselines3 counts the steps from 0, but takes the segment's end for the training's.

        Args:
            schedule: share of the steps that remains -> value.
        """
        share = self.end / self.total
        return lambda remaining: schedule(max(0.0, 1 - (1 - remaining) * share))


def build(
    spec: PolicySpec,
    envs: VecEnv,
    learning_rate: Schedule | None,
    options: Mapping[str, Any],
    segment: Segment,
    seed: int,
    device: torch.device,
) -> BaseAlgorithm:
    """An algorithm at the beginning of a segment, with random weights.

    Args:
        spec: of its policy.
        envs: that it trains in.
        learning_rate: share of the steps that remains -> learning rate; None for that of
            Stable-Baselines3.
        options: further arguments of the algorithm.
        segment: of the training.
        seed: of its random numbers, those of NumPy and PyTorch.
        device: of its networks.

    Raises:
        ConfigError: an option that it does not take, or with a value that it cannot use.
    """
    check_options(spec.algorithm, options)
    _check_network(spec)
    arguments: dict[str, Any] = {**DEFAULTS[spec.algorithm], **options}
    arguments["policy_kwargs"] = spec.network_options
    if learning_rate is not None:
        arguments["learning_rate"] = segment.scheduled(learning_rate)
    try:
        model = ALGORITHMS[spec.algorithm](
            spec.network, envs, seed=seed, device=device, **arguments
        )
    except (TypeError, ValueError, AssertionError, AttributeError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"baseline.options: {spec.algorithm} refuses them: {reason}") from error
    model.num_timesteps = segment.begin
    if isinstance(model, DQN):
        # It updates the target network by this count of its steps in all environments.
        model._n_calls = segment.begin // envs.num_envs
        if segment.begin:
            # It chooses the first actions before it asks the schedule.
            model.exploration_rate = model.exploration_schedule(1 - segment.begin / segment.total)
        model.exploration_schedule = segment.scheduled(model.exploration_schedule)
    return model


def save_state(folder: Path, model: BaseAlgorithm) -> None:
    """Write networks, optimisers, statistics of rewards and replay buffer, from which `load_state`
    continues.

    Args:
        folder: that holds them; made if it is missing.
        model: at the end of a segment.

    Raises:
        ArtifactError: the disk is full or not writable.
    """
    tree: dict[str, Any] = {
        "steps": model.num_timesteps,
        "parameters": model.get_parameters(),
        "entropy": _entropy(model),
    }
    normalised = model.get_vec_normalize_env()
    if normalised is not None:
        moments = normalised.ret_rms
        tree["returns"] = [float(moments.mean), float(moments.var), float(moments.count)]
    if isinstance(model, OffPolicyAlgorithm):
        buffer = _buffer(model)
        tree |= {"position": buffer.pos, "full": bool(buffer.full)}
        rows = buffer.buffer_size if buffer.full else buffer.pos
        for name in _RECORDED:
            with atomic_path(folder / f"{name}.npy") as temporary, temporary.open("wb") as file:
                np.save(file, getattr(buffer, name)[:rows], allow_pickle=False)
    weights.save(folder / STATE, tree)


def load_state(folder: Path, model: BaseAlgorithm) -> None:
    """Continue from what `save_state` wrote.

    Args:
        folder: that holds it.
        model: newly built.

    Raises:
        ArtifactError: a file is missing, damaged, or of another algorithm or network.
    """
    tree = weights.load(folder / STATE)
    try:
        model.num_timesteps = tree["steps"]
        model.set_parameters(tree["parameters"], device=model.device)
        if tree["entropy"] is not None:
            _entropy(model).data.copy_(tree["entropy"])
        normalised = model.get_vec_normalize_env()
        if normalised is not None:
            moments = normalised.ret_rms
            mean, variance, moments.count = tree["returns"]
            moments.mean, moments.var = np.array(mean), np.array(variance)
        if isinstance(model, OffPolicyAlgorithm):
            buffer = _buffer(model)
            buffer.pos, buffer.full = tree["position"], tree["full"]
            rows = buffer.buffer_size if buffer.full else buffer.pos
            for name in _RECORDED:
                recorded = np.load(folder / f"{name}.npy", mmap_mode="r", allow_pickle=False)
                getattr(buffer, name)[:rows] = recorded
            # New episodes follow: no return of several steps goes on into them. A timeout changes
            # nothing where an episode is not done and returns have one step.
            last = (buffer.pos - 1) % buffer.buffer_size
            buffer.timeouts[last] = np.maximum(buffer.timeouts[last], 1 - buffer.dones[last])
    except (KeyError, TypeError, ValueError, RuntimeError, AttributeError, OSError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ArtifactError(
            f"{folder} is damaged ({reason}); make its stage again with overwrite=true"
        ) from error


STATE = "state.safetensors"
_RECORDED = ("observations", "next_observations", "actions", "rewards", "dones", "timeouts")
"""Arrays of a replay buffer."""


def _buffer(model: OffPolicyAlgorithm) -> ReplayBuffer:
    assert model.replay_buffer is not None
    return model.replay_buffer


def _entropy(model: BaseAlgorithm) -> Any:
    """The logarithm of SAC's coefficient of entropy where that is trained; else None."""
    return getattr(model, "log_ent_coef", None)
