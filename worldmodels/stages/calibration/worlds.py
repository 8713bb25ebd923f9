"""Steps of the worlds of a run, and recording, in pools of workers."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any, NamedTuple

import numpy as np

from worldmodels.config.choices import ActionSource, WorldKind
from worldmodels.evolution.fitness import evaluation_num_envs
from worldmodels.planning.schedule import WorldCost
from worldmodels.planning.timing import (
    InWorld,
    OpenWorld,
    OpenWorldSetup,
    StepCost,
    StepProbe,
    step_times,
)
from worldmodels.stages.calibration.setting import Setting
from worldmodels.stages.controller import batch_sizes, dream_spec, searched
from worldmodels.workers.jobs import Pool
from worldmodels.workers.local import LocalPool
from worldmodels.worlds.collect import CollectShard, RandomActions
from worldmodels.worlds.specs import WorldSpec

SHARDS = "shards"
"""The folder of the episodes that are recorded here."""
_MANY_FRAMES = 8192
"""Frames that the encoder is trained on: two pools of `worldmodels.data.frames`."""
_LEAST_STEPS, _ENOUGH_STEPS = 8.0, 150.0


class Recording(NamedTuple):
    """What recording costs, and what was recorded; see `Rates`."""

    record: float
    record_bytes: float
    frame_bytes: float
    random_length: float


def measure(
    setting: Setting, policies: set[ActionSource]
) -> tuple[dict[str, WorldCost], Recording]:
    """Step the worlds that the run needs, and record episodes of random actions.

    Args:
        setting: of the calibration, whose run in miniature is finished.
        policies: that collect, in the run and its bootstrap run.

    Returns:
        the costs by the names that `Rates` lists; those of recording.
    """
    config, runtime = setting.config, setting.runtime
    measured: list[tuple[tuple[WorldSpec, int, Any], WorldCost]] = []
    costs: dict[str, WorldCost] = {}
    with ExitStack() as stack:
        pools: dict[int, LocalPool[OpenWorld]] = {}
        for name, spec, size, policy in _needed(setting, policies):
            what = (spec, size, policy)
            # The evaluation may be in the environment of training.
            known = next((cost for seen, cost in measured if seen == what), None)
            # The learned model on a GPU has no workers, the environment has.
            processes = runtime.processes(spec.device)
            if processes not in pools:
                pool = LocalPool(OpenWorldSetup(), processes, config.workers.timeout)
                pools[processes] = stack.enter_context(pool)
            costs[name] = known or _cost(setting, pools[processes], spec, size, policy)
            measured.append((what, costs[name]))
        real = pools[runtime.processes(str(runtime.real_device))]
        recording = _record(setting, real, costs["random"].busy)
    return costs, recording


def _needed(setting: Setting, policies: set[ActionSource]) -> list[tuple[str, WorldSpec, int, Any]]:
    """Name, world, number of environments and policy of each world that the run steps."""
    config, runtime = setting.config, setting.runtime
    folder, joined = setting.agent_folder, setting.agent.config
    encoder, dynamics = folder / "vae.safetensors", folder / "rnn.safetensors"
    features, engine, num_envs = joined.features, config.evaluate.engine, config.env.num_envs
    random = RandomActions("uniform", runtime.controls)
    needed: list[tuple[str, WorldSpec, int, Any]] = []
    needed.append(("random", runtime.real(None), num_envs, random))
    dreaming = config.controller.world is WorldKind.dream
    if not dreaming or ActionSource.controller in policies:
        real = runtime.real(None, encoder, dynamics, features)
        needed.append(("controller", real, num_envs, joined.controller))
    if dreaming:
        predicted = dream_spec(setting.context, dynamics, features, None)
        dream = searched(setting.context, predicted, folder.parent)
        needed.append(("dream", dream, batch_sizes(setting.context)[1], joined.controller))
    evaluated = evaluation_num_envs(runtime.env_spec(engine).engine, num_envs)
    real = runtime.real(engine, encoder, dynamics, features)
    needed.append(("evaluate", real, evaluated, joined.controller))
    needed.append(("evaluate random", runtime.real(engine), evaluated, random))
    return needed


def _cost(
    setting: Setting, pool: Pool[OpenWorld], spec: WorldSpec, size: int, policy: Any
) -> WorldCost:
    """Step a world with all workers, with fewer environments, and with one worker alone."""
    all_workers = setting.workers(spec.device)

    def probes(num_envs: int, workers: int) -> list[StepProbe]:
        seeds = [range(i * num_envs, (i + 1) * num_envs) for i in range(workers)]
        return [StepProbe(spec, tuple(part), policy, setting.seconds / 3) for part in seeds]

    fewer = size if isinstance(policy, RandomActions) else max(1, size // 4)
    times = step_times(pool, probes(size, all_workers))
    few = times if fewer == size else step_times(pool, probes(fewer, all_workers))
    busy = alone = StepCost.of(size, times, fewer, few)
    if all_workers > 1:
        single = step_times(pool, probes(size, 1))
        alone = busy.scaled(single.step / times.step)
    return WorldCost(busy, alone, all_workers, times.peak_bytes)


def _record(setting: Setting, pool: Pool[OpenWorld], cost: StepCost) -> Recording:
    """Collect a shard in each worker, and more where the encoder needs more frames."""
    config, runtime = setting.config, setting.runtime
    workers = setting.workers(str(runtime.real_device))
    size, limit = config.env.num_envs, config.rollouts.max_steps
    lanes = size * workers
    least = max(_LEAST_STEPS, 2 * config.vae.batch_size / lanes)
    affordable = setting.seconds / max(cost.each * size + cost.step, 1e-9)
    wanted = min(affordable, max(_MANY_FRAMES / lanes, _ENOUGH_STEPS))
    steps = int(min(limit, max(least, wanted)))
    spec, policy = runtime.real(None), RandomActions("uniform", runtime.controls)
    folder = setting.folder / SHARDS
    jobs = []
    for number in range(workers):
        path, seeds = folder / f"shard-{number:05d}.h5", range(number * size, (number + 1) * size)
        jobs.append(InWorld(spec, CollectShard(path, tuple(seeds), steps, policy, {})))
    done = pool.map(jobs)
    taken = float(np.mean([seconds for _, seconds, _, _ in done]))
    played = sum(int(outcome.lengths.sum()) for outcome, _, _, _ in done)
    ended = sum(int(outcome.terminated.sum()) for outcome, _, _, _ in done)
    hazard, stepped = ended / played, played / workers
    stored = sum(path.stat().st_size for path in folder.iterdir())
    return Recording(
        record=max(0.0, (taken - cost.job(size, steps, stepped)) / stepped),
        record_bytes=max(after - before for _, _, before, after in done) / (size * steps),
        frame_bytes=stored / (played + lanes),
        random_length=(1 - (1 - hazard) ** limit) / hazard if hazard else float(limit),
    )
