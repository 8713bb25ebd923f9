"""The loop that trains a baseline: segments of training, each followed by an evaluation.

A segment begins with new episodes and new random numbers, which depend on the seed and the number
of the segment, and with networks, optimisers, statistics of rewards and replay buffer as the
segment before left them. So a training that is stopped at any moment and resumed gives the same
policy as one that was not: it repeats the segment in which it was stopped. A state and its policy
are kept in one folder for each segment, put in place by renaming.
"""

from __future__ import annotations

import gc
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import KVWriter, Logger
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.type_aliases import Schedule
from stable_baselines3.common.vec_env import VecMonitor, VecNormalize

from worldmodels import seeds
from worldmodels.baselines.algorithms import PolicySpec, Segment, build, load_state, save_state
from worldmodels.baselines.policy import BaselinePolicy, load_policy, save_policy
from worldmodels.baselines.vec_env import SeededVecEnv, Seeds
from worldmodels.errors import TrainingError
from worldmodels.files.atomic import JsonLines, read_json, write_json
from worldmodels.runs.integrity import require_made_by
from worldmodels.runs.tracking import MetricsLog, Progress, say
from worldmodels.system import interrupts
from worldmodels.worlds.rollout import Outcome

POLICY, RECORD = "policy.safetensors", "segment.json"
_GAMMA = 0.99
"""Stable-Baselines3's default discount."""


@dataclass(frozen=True)
class TrainOptions:
    """Options of `train`.

    Args:
        total_steps: of all environments, at least.
        checkpoint_steps: of a segment, at least.
        learning_rate: share of the steps that remains -> learning rate; None for that of
            Stable-Baselines3.
        normalise_reward: divide rewards by the standard deviation of discounted returns, and limit
            them to 10.
        options: further arguments of the algorithm.
        seed: of all random numbers.
        device: of the networks.
        made_by: hash of configuration and inputs; a log with another one is refused.
    """

    total_steps: int
    checkpoint_steps: int
    learning_rate: Schedule | None
    normalise_reward: bool
    options: Mapping[str, Any]
    seed: int
    device: torch.device
    made_by: str


@dataclass(frozen=True)
class TrainResult:
    """The results of `train`.

    Args:
        parameters: of the policy with the highest mean return on the selection seeds, by name.
        score: that mean.
        steps: of all environments.
        throughput: of training, steps per second.
    """

    parameters: dict[str, np.ndarray]
    score: float
    steps: int
    throughput: float


def train(
    spec: PolicySpec,
    make_envs: Callable[[Seeds], SeededVecEnv],
    evaluate: Callable[[BaselinePolicy], Outcome],
    folder: Path,
    options: TrainOptions,
    tracker: MetricsLog,
) -> TrainResult:
    """Train a policy, resuming from `folder` if it holds a segment.

    The policy with the highest mean return on the selection seeds is ``folder / POLICY``.

    Args:
        spec: of the policy.
        make_envs: makes the environments of a segment.
        evaluate: plays the episodes of the selection seeds with a policy.
        folder: of the segments.
        options: how to train.
        tracker: of the metrics; rows after the last segment are removed.

    Raises:
        ArtifactError: a file in `folder` is damaged, or has another `made_by`.
        ConfigError: the algorithm refuses an option.
        TrainingError: the networks compute numbers that are not finite.
        Stopped: the process was asked to stop.
    """
    return _Loop(spec, make_envs, evaluate, folder, options, tracker).run()


class _Loop:
    """The state of a training: what its folder holds."""

    def __init__(
        self,
        spec: PolicySpec,
        make_envs: Callable[[Seeds], SeededVecEnv],
        evaluate: Callable[[BaselinePolicy], Outcome],
        folder: Path,
        options: TrainOptions,
        tracker: MetricsLog,
    ) -> None:
        self.spec, self.make_envs, self.evaluate = spec, make_envs, evaluate
        self.folder, self.options, self.tracker = folder, options, tracker
        self.log = JsonLines(folder / "segments.jsonl")
        self.records = self.log.read()
        made_by = (record.get("made_by") for record in self.records)
        require_made_by(self.log.path, made_by, options.made_by)

    def run(self) -> TrainResult:
        for partial in self.folder.glob("segment-*.partial"):
            shutil.rmtree(partial)
        saved = max(self.folder.glob("segment-*"), default=None)
        self.tracker.rewind(0 if saved is None else int(_record(saved)["steps"]))
        if saved is not None and len(self.records) <= _record(saved)["segment"]:
            self._evaluate(saved)  # it was stopped before
        total = self.options.total_steps
        with Progress(self.folder.name, total, "steps", self._steps) as progress:
            while self._steps < total:
                number, begin = len(self.records), self._steps
                end = min(begin + self.options.checkpoint_steps, total)
                segment = Segment(number, begin, end, total)
                path = self._train(segment, progress)
                # Models of Stable-Baselines3 refer to themselves; a replay buffer has gigabytes.
                gc.collect()
                self._evaluate(path)
        steps, seconds = self._steps, sum(record["seconds"] for record in self.records)
        best = load_policy(self.folder / POLICY, self.spec).state_dict()
        parameters = {name: tensor.cpu().numpy() for name, tensor in best.items()}
        return TrainResult(parameters, self._best, steps, steps / seconds)

    @property
    def _steps(self) -> int:
        """Those of the segments so far."""
        return int(self.records[-1]["steps"]) if self.records else 0

    @property
    def _best(self) -> float:
        return max((float(record["score"]) for record in self.records), default=-np.inf)

    def _train(self, segment: Segment, progress: Progress) -> Path:
        """Train a segment; returns its folder."""
        options, began = self.options, time.monotonic()
        seed = int(np.random.SeedSequence([options.seed, segment.number]).generate_state(1)[0])
        envs = self._envs(segment)
        try:
            rate = options.learning_rate
            model = build(self.spec, envs, rate, options.options, segment, seed, options.device)
            if segment.number:
                load_state(self._path(segment.number - 1), model)
            model.set_logger(Logger(None, [_Metrics(self.tracker)]))
            _learn(model, segment.end - segment.begin, _Counted(progress))
        finally:
            envs.close()
        interrupts.check()
        return self._save(segment, model, time.monotonic() - began)

    def _envs(self, segment: Segment) -> VecMonitor | VecNormalize:
        """The environments of a segment."""
        drawn: dict[int, list[int]] = {}

        def seeds_of(episode: int) -> list[int]:
            if episode not in drawn:
                purpose, path = seeds.Purpose.TRAINING, (segment.number, episode)
                drawn[episode] = seeds.draw(purpose, self.options.seed, *path, count=count)
            return drawn[episode]

        envs = self.make_envs(seeds_of)
        count = envs.num_envs
        monitored = VecMonitor(envs)
        if not self.options.normalise_reward:
            return monitored
        gamma = float(self.options.options.get("gamma", _GAMMA))
        return VecNormalize(monitored, norm_obs=False, gamma=gamma)

    def _save(self, segment: Segment, model: BaseAlgorithm, seconds: float) -> Path:
        """Put the state in place of that of the segment before."""
        path = self._path(segment.number)
        partial = path.with_suffix(".partial")
        save_state(partial, model)
        save_policy(partial / POLICY, model.policy)
        record = {"segment": segment.number, "steps": model.num_timesteps}
        write_json(partial / RECORD, {**record, "seconds": round(seconds, 3)})
        self.tracker.flush()
        partial.rename(path)
        for earlier in self.folder.glob("segment-*"):
            if earlier != path:
                shutil.rmtree(earlier)
        return path

    def _evaluate(self, path: Path) -> None:
        """Score the policy of a segment; keep it if it is the best so far."""
        record = _record(path)
        outcome = self.evaluate(BaselinePolicy(path / POLICY, self.spec))
        score, steps = float(outcome.returns.mean()), int(record["steps"])
        if score > self._best:
            save_policy(self.folder / POLICY, load_policy(path / POLICY, self.spec))
        record |= {"score": score, "made_by": self.options.made_by}
        self.tracker.log(steps, {"selection/mean": score})
        self.tracker.flush()
        self.log.append(record)
        self.records.append(record)
        say(
            f"baseline: {steps:,} steps: {score:.1f} on {len(outcome.returns)} selection seeds"
            f" (best {self._best:.1f})"
        )

    def _path(self, number: int) -> Path:
        return self.folder / f"segment-{number:05d}"


def _learn(model: BaseAlgorithm, steps: int, counted: _Counted) -> None:
    """Train for so many steps; raises `TrainingError` for networks that diverge."""
    # Of rollouts, or of episodes.
    interval = model.n_envs if isinstance(model, OffPolicyAlgorithm) else 1
    try:
        model.learn(steps, counted, interval, reset_num_timesteps=False)
    except ValueError as error:
        finite = all(bool(weights.isfinite().all()) for weights in model.policy.parameters())
        # Finite weights can overflow: so PyTorch's distributions say of parameters that are NaN.
        if finite and "found invalid values" not in str(error):
            raise  # of the environment
        raise TrainingError(
            f"baseline: the networks compute numbers that are not finite"
            f" ({str(error).splitlines()[0]}); choose a lower baseline.learning_rate"
        ) from error


def _record(path: Path) -> dict[str, Any]:
    """What is known of a segment before its evaluation."""
    return dict(read_json(path / RECORD))


class _Counted(BaseCallback):
    """Advances the progress bar; ends the training where the process is asked to stop."""

    def __init__(self, progress: Progress) -> None:
        super().__init__()
        self._progress = progress

    def _on_step(self) -> bool:
        self._progress.advance(self.training_env.num_envs)
        return not interrupts.requested()


class _Metrics(KVWriter):
    """Gives the metrics of Stable-Baselines3 to this project's log."""

    def __init__(self, tracker: MetricsLog) -> None:
        self._tracker = tracker

    def write(
        self,
        key_values: dict[str, Any],
        key_excluded: dict[str, tuple[str, ...]],
        step: int = 0,
    ) -> None:
        """Log the numbers of a step, without those about time, which the log has itself."""
        values = {
            key: float(value)
            for key, value in key_values.items()
            if isinstance(value, int | float | np.number) and not key.startswith("time/")
        }
        if values:
            self._tracker.log(step, values)

    def close(self) -> None:
        """Do nothing: the log is its stage's."""
