"""Times of the parts of a run, each measured for a few seconds.

Shapes are in the letters of docs/shapes.md: N environments, P candidates.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from lightning_fabric import Fabric

from worldmodels.models.controller import ControllerSpec
from worldmodels.runs.tracking import MetricsLog
from worldmodels.system import interrupts
from worldmodels.system.resources import Meter, own_peak, reset_peak
from worldmodels.training.fit import FitOptions, evaluate, fit
from worldmodels.training.parts import Parts, side_by_side
from worldmodels.training.ranks import ALONE
from worldmodels.training.task import Task
from worldmodels.workers.jobs import Heartbeat, Pool
from worldmodels.worlds.collect import RandomActions
from worldmodels.worlds.rollout import Policy, PopulationPolicy
from worldmodels.worlds.specs import WorldSpec
from worldmodels.worlds.world import World

WARM_UP = 1
"""Training steps, and steps of a world, before the first that is timed."""


class FitRate(NamedTuple):
    """Throughput of a training task, in its unit per second, and the largest memory of it.

    Args:
        training: of training steps, with the wait for data.
        validation: of validation, likewise.
        peak_bytes: of this process.
        gpu_bytes: of its GPU; 0 where there is none.
    """

    training: float
    validation: float
    peak_bytes: int
    gpu_bytes: int


class TimedTask:
    """A training task whose epoch ends after a number of seconds, and that counts what it did.

    Args:
        task: that is trained; epochs follow one another while there is time.
        seconds: of training after `WARM_UP` steps; at least one more step is taken.
    """

    def __init__(self, task: Task, seconds: float) -> None:
        self._task, self._limit = task, seconds
        self.counted, self.seconds = 0, 0.0

    @property
    def module(self) -> torch.nn.Module:
        """What is trained; `fit` replaces it."""
        return self._task.module

    @module.setter
    def module(self, module: torch.nn.Module) -> None:
        self._task.module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(self._task, name)

    def batches(self, epoch: int, start: int) -> Iterator[Any]:
        """Training batches until the time is over; a batch counts when the next is asked for."""
        began, taken = 0.0, 0
        while True:
            for batch in self._task.batches(epoch, start):
                yield batch
                interrupts.check()
                taken += 1
                if taken <= WARM_UP:
                    began = time.perf_counter()
                    continue
                self.counted += self._task.count(batch)
                self.seconds = time.perf_counter() - began
                if self.seconds > self._limit:
                    return
            epoch += 1


def fit_rate(
    task: Task, folder: Path, options: FitOptions, fabric: Fabric, seconds: float
) -> FitRate:
    """Train a task for some seconds by `fit`, with its checkpoints, and validate it.

    Args:
        task: module and data.
        folder: of the checkpoints.
        options: how to train; one epoch.
        fabric: device and precision.
        seconds: of training.
    """
    timed, meter = TimedTask(task, seconds), Meter()
    with MetricsLog(folder / "metrics.csv") as tracker:
        fit(timed, folder, options, fabric, tracker)
    validated = sum(task.count(batch) for batch in task.validation())
    began = time.perf_counter()
    split = side_by_side(task.module, options.compile)
    with Parts(ALONE, options.accumulate, fabric.device, split) as parts:
        evaluate(task, options.seed, parts)
    validation = validated / (time.perf_counter() - began)
    peak = meter.read()["peak_bytes"]
    training = timed.counted / timed.seconds
    return FitRate(training, validation, peak["process"], peak.get("gpu", 0))


class OpenWorld:
    """A worker's tool: one world at a time, built when a job asks for another one."""

    def __init__(self) -> None:
        self._spec: WorldSpec | None = None
        self._world: World | None = None

    def open(self, spec: WorldSpec) -> World:
        """The world of `spec`."""
        if self._world is None or self._spec != spec:
            self.close()
            self._spec, self._world = spec, spec.build()
        return self._world

    def close(self) -> None:
        """Close the world that is open, if one is. May be called twice."""
        if self._world is not None:
            self._world.close()
        self._world = None


@dataclass(frozen=True)
class OpenWorldSetup:
    """What a worker builds an `OpenWorld` from."""

    def build(self) -> OpenWorld:
        """Without a world, which the first job opens."""
        return OpenWorld()


class InWorld(NamedTuple):
    """Another job, such as a `CollectShard`, in a world of an `OpenWorld`.

    Returns (result, seconds, memory of the worker before and its largest so far, in bytes).
    """

    spec: WorldSpec
    job: Callable[[Any, Heartbeat], Any]

    def __call__(self, tool: OpenWorld, heartbeat: Heartbeat) -> tuple[Any, float, int, int]:
        """Do it."""
        world = tool.open(self.spec)
        reset_peak()
        before, began = own_peak(), time.perf_counter()
        result = self.job(world, heartbeat)
        return result, time.perf_counter() - began, before, own_peak()


class StepTimes(NamedTuple):
    """What a `StepProbe` measured.

    Args:
        reset: seconds of the reset of all N environments.
        step: seconds of one step of all N.
        peak_bytes: of the worker so far.
    """

    reset: float
    step: float
    peak_bytes: int


@dataclass(frozen=True)
class StepProbe:
    """A job for a worker: step N environments for some seconds. Ended ones are not dropped.

    Args:
        spec: of the world.
        seeds: of the N episodes.
        policy: of random actions, or the layers of a controller with random parameters, a different
            one in each environment.
        seconds: to step for.
        most: steps, at most.
    """

    spec: WorldSpec
    seeds: tuple[int, ...]
    policy: RandomActions | ControllerSpec
    seconds: float
    most: int = 100

    def __call__(self, tool: OpenWorld, heartbeat: Heartbeat) -> StepTimes:
        """Reset and step; the first reset, which makes the environments, is not timed."""
        reset_peak()
        world = tool.open(self.spec)
        world.reset(self.seeds)
        began = time.perf_counter()
        features = world.reset(self.seeds)
        reset = time.perf_counter() - began
        policy, steps = self._policy(world), 0
        for number in range(self.most + WARM_UP):
            features = world.step(policy.act(features)).features
            heartbeat(len(self.seeds))
            steps = number + 1 - WARM_UP
            if steps <= 0:
                began = time.perf_counter()
            elif time.perf_counter() - began > self.seconds:
                break
        if world.device.type == "cuda":
            torch.cuda.synchronize()
        return StepTimes(reset, (time.perf_counter() - began) / steps, own_peak())

    def _policy(self, world: World) -> Policy:
        if isinstance(self.policy, RandomActions):
            return self.policy.policy(world, self.seeds)
        rng, size = np.random.default_rng(0), self.policy.size(world.feature_size)
        candidates = (0.1 * rng.standard_normal((len(self.seeds), size))).astype(np.float32)
        return PopulationPolicy(candidates, 1, world.feature_size, self.policy, world.device)


@dataclass(frozen=True)
class StepCost:
    """Seconds that episodes in lockstep take: a model of a job's time.

    Args:
        reset: of an episode's reset.
        step: of a step of a batch, whatever its size.
        each: more of a step, for each environment.
    """

    reset: float
    step: float
    each: float

    def job(self, episodes: float, longest: float, steps: float) -> float:
        """Seconds of a job of some episodes, the longest of so many steps, and `steps` in all."""
        return episodes * self.reset + longest * self.step + steps * self.each

    @classmethod
    def of(cls, num_envs: int, times: StepTimes, fewer: int, of_fewer: StepTimes) -> StepCost:
        """The costs that the times of batches of two sizes show; of one size, `step` is 0."""
        each = times.step / num_envs
        if fewer < num_envs:
            slope = (times.step - of_fewer.step) / (num_envs - fewer)
            each = min(max(slope, 0.0), each)
        return cls(times.reset / num_envs, times.step - each * num_envs, each)

    def scaled(self, factor: float) -> StepCost:
        """All of it, times `factor`."""
        return StepCost(self.reset * factor, self.step * factor, self.each * factor)


def step_times(pool: Pool[OpenWorld], probes: Sequence[StepProbe]) -> StepTimes:
    """Run the probes at the same time, one in each worker, and average what they measured."""
    found: list[StepTimes] = pool.map(probes)
    return StepTimes(
        float(np.mean([times.reset for times in found])),
        float(np.mean([times.step for times in found])),
        max(times.peak_bytes for times in found),
    )
