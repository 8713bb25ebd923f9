"""Steps a second of CarRacing's engines, drawing included: ``make speed``.

Whole episodes of 1,000 steps, so that the first second, which shows the whole field and costs most,
has its ordinary share. All in one run; the other engines are measured before the native one and
again after it, and the better figure counts, so that a temporarily slow machine favours no
engine. A GPU is measured where there is one.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from worldmodels.envs.carracing.courses import seeded_course
from worldmodels.envs.carracing.cuda import usable
from worldmodels.envs.carracing.simulator import CpuSimulator
from worldmodels.envs.carracing.vector import CarRacingVectorEnv
from worldmodels.envs.envpool_engine import EnvPoolVectorEnv, envpool_has
from worldmodels.files.atomic import write_json
from worldmodels.runs.provenance import provenance
from worldmodels.runs.tracking import Progress, console
from worldmodels.system.cores import available_cores

NUM_ENVS = (1, 16, 256, 1024)
GPU_NUM_ENVS = (256, 1024, 4096, 16384, 65536)
TRACKS = 256
EPISODE = 1000
FRAME = 64 * 64 * 3


def controls(num_envs: int, step: int) -> NDArray[np.float32]:
    """Steering that weaves, some gas, a touch of the brake now and then, ``(num_envs, 3)``."""
    phase = np.arange(num_envs)
    steer = 0.3 * np.sin(step / 25 + phase)
    gas = 0.15 * (1 + np.sin(step / 60 + phase))
    brake = 0.2 * ((step + 37 * phase) % 200 > 180)
    return np.stack([steer, gas, brake], axis=1).astype(np.float32)


def rate(
    begin: Callable[[], Any], step: Callable[[int], Any], num_envs: int, seconds: float
) -> float:
    """Steps a second of whole episodes, until `seconds` are over."""
    steps, spent = 0, 0.0
    while spent < seconds:
        begin()
        began = time.perf_counter()
        for number in range(EPISODE):
            step(number)
        spent += time.perf_counter() - began
        steps += EPISODE * num_envs
    return steps / spent


def native(
    num_envs: int, threads: int, size: int, seconds: float, device: str = "cpu", every: int = 1
) -> float:
    """The vector environment; one of `every` steps is drawn."""
    env = CarRacingVectorEnv(
        num_envs, None, size=size, autoreset_mode="Disabled", threads=threads, device=device
    )
    seeds = [index % TRACKS for index in range(num_envs)]

    def step(number: int) -> None:
        env.step(controls(num_envs, number), draw=(number + 1) % every == 0)

    return rate(lambda: env.reset(seed=seeds), step, num_envs, seconds)


def physics(num_envs: int, threads: int, seconds: float) -> float:
    """The same without drawing."""
    simulator, active = CpuSimulator(num_envs, 64, 0.95, threads), np.ones(num_envs, np.bool_)
    courses = [seeded_course(index % TRACKS, False) for index in range(num_envs)]

    def step(number: int) -> None:
        simulator.step(controls(num_envs, number).astype(np.float64), active)

    return rate(lambda: simulator.begin(range(num_envs), courses), step, num_envs, seconds)


def envpool(num_envs: int, threads: int, seconds: float) -> float:
    """EnvPool's engine."""
    env = EnvPoolVectorEnv("CarRacing-v3", num_envs, threads, 10 * EPISODE, {})
    seeds = list(range(num_envs))
    return rate(
        lambda: env.reset(seed=seeds), lambda n: env.step(controls(num_envs, n)), num_envs, seconds
    )


def original(seconds: float) -> float:
    """Gymnasium's own, one environment."""
    env = gymnasium.make("CarRacing-v3", max_episode_steps=10 * EPISODE)
    return rate(
        lambda: env.reset(seed=0), lambda n: env.unwrapped.step(controls(1, n)[0]), 1, seconds
    )


def others(threads: int, seconds: float) -> list[tuple[str, int, int, Callable[[], float]]]:
    """What the native engine is compared with."""
    plans: list[tuple[str, int, int, Callable[[], float]]] = []
    if threads == 1:
        plans.append(("Gymnasium", 1, 1, lambda: original(seconds)))
    if envpool_has("CarRacing-v3"):
        plans.append(("EnvPool", 16, threads, lambda: envpool(16, threads, seconds)))
    return plans


def bandwidth() -> float:
    """Bytes a second that one core writes to memory, in blocks larger than its caches."""
    block = np.zeros(256 << 20, np.uint8)
    began = time.perf_counter()
    for value in range(4):
        block.fill(value)
    return 4 * block.nbytes / (time.perf_counter() - began)


def main() -> None:
    """Measure, print a table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=4.0, help="at least, of a measurement")
    parser.add_argument("--num-envs", type=int, nargs="*", default=NUM_ENVS)
    parser.add_argument("--out", type=Path, default=Path("data/carracing_speed.json"))
    options = parser.parse_args()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    cores, seconds = available_cores(), options.seconds
    plans: list[tuple[str, int, int, Callable[[], float]]] = []
    for threads in sorted({1, cores}):
        plans += others(threads, seconds)
        for num_envs in options.num_envs:
            measures = {
                "native 64x64": partial(native, num_envs, threads, 64, seconds),
                "native 96x96": partial(native, num_envs, threads, 96, seconds),
                "native 64x64, one of 4 drawn": partial(
                    native, num_envs, threads, 64, seconds, every=4
                ),
                "native physics": partial(physics, num_envs, threads, seconds),
            }
            plans += [(what, num_envs, threads, measure) for what, measure in measures.items()]
    for threads in sorted({1, cores}):
        plans += others(threads, seconds)
    if usable():
        for num_envs in GPU_NUM_ENVS:
            on_gpu = partial(native, num_envs, 1, 64, seconds, "cuda")
            plans.append(("GPU 64x64", num_envs, 1, on_gpu))
    best: dict[tuple[str, int, int], float] = {}
    with Progress("measuring", len(plans), "measurements") as progress:
        for what, num_envs, threads, measure in plans:
            key = what, num_envs, threads
            best[key] = max(measure(), best.get(key, 0.0))
            progress.advance(note=f"{what}, {num_envs} environments, {threads} threads")
    records = [
        {"what": what, "num_envs": num_envs, "threads": threads, "steps_s": steps}
        for (what, num_envs, threads), steps in best.items()
    ]
    written = bandwidth()
    write_json(options.out, {**provenance(), "bandwidth": written, "figures": records})
    console.print(table(records, written))
    console.print(f"wrote {options.out}")


def table(records: list[dict[str, Any]], written: float) -> Table:
    """The figures for a terminal."""
    one = {
        r["what"]: r["steps_s"] for r in records if r["threads"] == 1 and r["num_envs"] in (1, 16)
    }
    printed = Table(
        "engine", "num_envs", "threads", "steps/s", "us a step", "a core, to Gymnasium",
        "to EnvPool", "of write bandwidth",
    )  # fmt: skip
    for r in records:
        each = r["steps_s"] / r["threads"]
        share = r["steps_s"] * FRAME / written if r["what"].endswith("64x64") else None
        printed.add_row(
            r["what"],
            str(r["num_envs"]),
            str(r["threads"]),
            f"{r['steps_s']:,.0f}",
            f"{1e6 / r['steps_s']:.1f}",
            f"x {each / one['Gymnasium']:.1f}",
            f"x {each / one['EnvPool']:.1f}" if "EnvPool" in one else "-",
            "-" if share is None else f"{share:.1%}",
        )
    return printed


if __name__ == "__main__":
    main()
