"""Steps a second of CarRacing's engines, drawing included: ``make speed``.

Whole episodes of 1,000 steps, so that the first second, which shows the whole field and costs most,
has its ordinary share. All in one run; the other engines are measured before the native one and
again after it, and the better figure counts, so that a machine that is slow for a while flatters
nobody. A GPU is measured where there is one.
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

from worldmodels.cores import available_cores
from worldmodels.envs.carracing.courses import seeded_course
from worldmodels.envs.carracing.cuda import usable
from worldmodels.envs.carracing.simulator import CpuSimulator
from worldmodels.envs.carracing.vector import CarRacingVectorEnv
from worldmodels.envs.envpool_engine import EnvPoolLanes, envpool_has
from worldmodels.files import write_json
from worldmodels.provenance import provenance
from worldmodels.tracking import Progress, console

LANES = (1, 16, 256, 1024)
GPU_LANES = (256, 1024, 4096, 16384, 65536)
TRACKS = 256
EPISODE = 1000
FRAME = 64 * 64 * 3


def controls(lanes: int, step: int) -> NDArray[np.float32]:
    """Steering that weaves, some gas, a touch of the brake now and then, ``(lanes, 3)``."""
    phase = np.arange(lanes)
    steer = 0.3 * np.sin(step / 25 + phase)
    gas = 0.15 * (1 + np.sin(step / 60 + phase))
    brake = 0.2 * ((step + 37 * phase) % 200 > 180)
    return np.stack([steer, gas, brake], axis=1).astype(np.float32)


def rate(begin: Callable[[], Any], step: Callable[[int], Any], lanes: int, seconds: float) -> float:
    """Steps a second of whole episodes, until `seconds` are over."""
    steps, spent = 0, 0.0
    while spent < seconds:
        begin()
        began = time.perf_counter()
        for number in range(EPISODE):
            step(number)
        spent += time.perf_counter() - began
        steps += EPISODE * lanes
    return steps / spent


def native(lanes: int, threads: int, size: int, seconds: float, device: str = "cpu") -> float:
    """The vector environment."""
    env = CarRacingVectorEnv(
        lanes, None, size=size, autoreset_mode="Disabled", threads=threads, device=device
    )
    seeds = [lane % TRACKS for lane in range(lanes)]
    return rate(
        lambda: env.reset(seed=seeds), lambda n: env.step(controls(lanes, n)), lanes, seconds
    )


def physics(lanes: int, threads: int, seconds: float) -> float:
    """The same without drawing."""
    simulator, active = CpuSimulator(lanes, 64, 0.95, threads), np.ones(lanes, np.bool_)
    courses = [seeded_course(lane % TRACKS, False) for lane in range(lanes)]

    def step(number: int) -> None:
        simulator.step(controls(lanes, number).astype(np.float64), active)

    return rate(lambda: simulator.begin(range(lanes), courses), step, lanes, seconds)


def envpool(lanes: int, threads: int, seconds: float) -> float:
    """EnvPool's engine."""
    env = EnvPoolLanes("CarRacing-v3", lanes, threads, 10 * EPISODE, {})
    seeds = list(range(lanes))
    return rate(
        lambda: env.reset(seed=seeds), lambda n: env.step(controls(lanes, n)), lanes, seconds
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
    parser.add_argument("--lanes", type=int, nargs="*", default=LANES)
    parser.add_argument("--out", type=Path, default=Path("data/carracing_speed.json"))
    options = parser.parse_args()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    cores, seconds = available_cores(), options.seconds
    plans: list[tuple[str, int, int, Callable[[], float]]] = []
    for threads in sorted({1, cores}):
        plans += others(threads, seconds)
        for lanes in options.lanes:
            measures = {
                "native 64x64": partial(native, lanes, threads, 64, seconds),
                "native 96x96": partial(native, lanes, threads, 96, seconds),
                "native physics": partial(physics, lanes, threads, seconds),
            }
            plans += [(what, lanes, threads, measure) for what, measure in measures.items()]
    for threads in sorted({1, cores}):
        plans += others(threads, seconds)
    if usable():
        for lanes in GPU_LANES:
            on_gpu = partial(native, lanes, 1, 64, seconds, "cuda")
            plans.append(("GPU 64x64", lanes, 1, on_gpu))
    best: dict[tuple[str, int, int], float] = {}
    with Progress("measuring", len(plans), "measurements") as progress:
        for what, lanes, threads, measure in plans:
            key = what, lanes, threads
            best[key] = max(measure(), best.get(key, 0.0))
            progress.advance(note=f"{what}, {lanes} lanes, {threads} threads")
    records = [
        {"what": what, "lanes": lanes, "threads": threads, "steps_s": steps}
        for (what, lanes, threads), steps in best.items()
    ]
    written = bandwidth()
    write_json(options.out, {**provenance(), "bandwidth": written, "figures": records})
    console.print(table(records, written))
    console.print(f"wrote {options.out}")


def table(records: list[dict[str, Any]], written: float) -> Table:
    """The figures for a terminal."""
    one = {r["what"]: r["steps_s"] for r in records if r["threads"] == 1 and r["lanes"] in (1, 16)}
    printed = Table(
        "engine", "lanes", "threads", "steps/s", "us a step", "a core, to Gymnasium", "to EnvPool",
        "of write bandwidth",
    )  # fmt: skip
    for r in records:
        each = r["steps_s"] / r["threads"]
        share = r["steps_s"] * FRAME / written if "64" in r["what"] else None
        printed.add_row(
            r["what"],
            str(r["lanes"]),
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
