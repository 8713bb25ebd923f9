"""How far the search of the controller scales: measured on this machine, simulated beyond it.

    python benchmarks/scaling.py              # measures, simulates, writes data/scaling.json
    python benchmarks/scaling.py --simulate   # simulates again from data/scaling.json

Measured: generations of the CarRacing search in the environment, by candidates around the shipped
agent, with workers of this machine and of a Ray cluster on it; what jobs of several sizes take;
what a message costs. Simulated: `scaling_model.py`.
"""

from __future__ import annotations

import argparse
import os
import pickle
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import ray
from rich.table import Table
from scaling_model import Costs, drawn, simulate

from worldmodels.agents.folder import Agent, read_agent
from worldmodels.config.shipped import PRETRAINED
from worldmodels.envs.engines import EnvSpec, prepare
from worldmodels.evolution.fitness import EpisodeSpec, EvalBatch, eval_batches
from worldmodels.evolution.search import Search
from worldmodels.files.atomic import read_json, write_json
from worldmodels.runs.provenance import provenance
from worldmodels.runs.tracking import console, say
from worldmodels.system.cores import available_cores
from worldmodels.workers.jobs import Heartbeat, Pool
from worldmodels.workers.local import LocalPool
from worldmodels.workers.ray_cluster import connect
from worldmodels.workers.ray_pool import RayPool
from worldmodels.worlds.rollout import Outcome
from worldmodels.worlds.specs import RealWorldSpec
from worldmodels.worlds.world import World

AGENT = PRETRAINED / "carracing"
SIGMA = 0.1
"""Standard deviation of the candidates' parameters around the agent's."""
POPULATION, EPISODES, SHORT = 16, 4, 150
"""A generation of the measurement, with episodes of `SHORT` steps: 64 episodes in 16 jobs."""
NUM_ENVS = 4
REPEATS = 3
SIZES = (16, 8, 4, 2, 1)
"""Environments in a job; how long such a job takes is measured with whole episodes."""
SAMPLES = 6
"""Jobs of each size that are measured."""
PAPER_POPULATION, PAPER_EPISODES = 64, 16
CLUSTERS = (10, 100, 1000)
MESSAGES = 300
SIMULATED = 30
"""Generations of a simulation."""


@dataclass(frozen=True)
class Timed:
    """A job that also returns when it began and ended, and how long its process computed."""

    job: EvalBatch

    def __call__(self, tool: World, heartbeat: Heartbeat) -> tuple[float, float, float]:
        """Do it."""
        began, computed = time.time(), time.process_time()
        self.job(tool, heartbeat)
        return began, time.time(), time.process_time() - computed


@dataclass(frozen=True)
class Nothing:
    """A job of no work, with the message of a real one."""

    job: EvalBatch

    def __call__(self, tool: None, heartbeat: Heartbeat) -> int:
        """Do nothing."""
        return 0


@dataclass(frozen=True)
class NoTool:
    """A setup of nothing."""

    def build(self) -> None:
        """Build nothing."""


def world(agent: Agent) -> RealWorldSpec:
    """CarRacing as the agent observes it."""
    return RealWorldSpec(
        env=EnvSpec(),
        encoder=AGENT / "vae.safetensors",
        dynamics=AGENT / "rnn.safetensors",
        features=agent.config.features,
    )


def generation(agent: Agent, number: int, size: int, steps: int, count: int) -> list[EvalBatch]:
    """The jobs of a generation.

    Args:
        agent: whose controller the candidates are around.
        number: of the generation, for other candidates and seeds each time.
        size: environments in a job.
        steps: time limit of an episode.
        count: candidates, with `EPISODES` episodes each.
    """
    noise = np.random.default_rng(number).normal(0, SIGMA, (count, agent.parameters.size))
    candidates = (agent.parameters + noise).astype(np.float32)
    seeds = range(1_000_000 + number * EPISODES, 1_000_000 + (number + 1) * EPISODES)
    return eval_batches(candidates, seeds, EpisodeSpec(size, steps, agent.config.controller))


def measure_pool(make: Callable[[], Pool[World]], workers: int, agent: Agent) -> dict[str, float]:
    """Generations an hour, and where the workers' time went."""
    with make() as pool:
        first = generation(agent, 0, NUM_ENVS, SHORT, POPULATION)
        pool.map([Timed(job) for job in first])  # all workers have started
        walls, computing, last = [], [], []
        for number in range(1, REPEATS + 1):
            jobs = [Timed(job) for job in generation(agent, number, NUM_ENVS, SHORT, POPULATION)]
            began = time.time()
            done = pool.map(jobs)
            wall = time.time() - began
            spans = sorted((start, end) for start, end, _ in done)
            walls.append(wall)
            computing.append(sum(end - start for start, end in spans) / wall / workers)
            last.append(_idle_at_the_end(spans, workers, began + wall) / wall / workers)
    return {
        "workers": workers,
        "generations_per_hour": 3600 / statistics.median(walls),
        "computing": statistics.median(computing),
        "last_job": statistics.median(last),
        "messages": max(0.0, 1 - statistics.median(computing) - statistics.median(last)),
    }


def _idle_at_the_end(spans: Sequence[tuple[float, float]], workers: int, over: float) -> float:
    """Seconds of workers that had nothing to do because no job was left."""
    free = [0.0] * workers
    for _, end in spans:  # a job goes to the worker that is free first
        free[free.index(min(free))] = end
    return sum(over - since for since in free if since)


def measure_jobs(agent: Agent) -> dict[str, list[float]]:
    """Seconds of jobs of each size, of whole episodes.

    Those that a worker of one thread computes, which other processes on the machine change little.
    """
    seconds: dict[str, list[float]] = {}
    with LocalPool(world(agent), 1, 600.0) as pool:
        for size in SIZES:
            count = max(SAMPLES * size // EPISODES, 1)
            jobs = generation(agent, size, size, EnvSpec().max_steps, count)[:SAMPLES]
            pool.map([Timed(jobs[0])])
            done = pool.map([Timed(job) for job in jobs])
            seconds[str(size)] = [round(computed, 4) for _, _, computed in done]
            say(f"scaling: a job of {size}: {statistics.mean(seconds[str(size)]):.2f} s")
    return seconds


def measure_messages(agent: Agent) -> dict[str, float]:
    """What a job without work costs on Ray: this process's time, and the time under way."""
    job = generation(agent, 0, EPISODES, SHORT, 1)[0]
    with RayPool(NoTool(), 1, 600.0) as pool:
        pool.map([Nothing(job)])
        began, busy = time.monotonic(), time.thread_time()
        pool.map([Nothing(job)] * MESSAGES)
        wall, busy = time.monotonic() - began, time.thread_time() - busy
    outcome = Outcome(np.zeros(EPISODES), np.zeros(EPISODES, np.int64), np.zeros(EPISODES, bool))
    return {
        "handling": busy / MESSAGES,
        "latency": max(0.0, wall - busy) / MESSAGES,
        "message": len(pickle.dumps(job)) + len(pickle.dumps(outcome)),
    }


class Sleeper:
    """An actor whose calls take long."""

    def sleep(self) -> None:
        """Take long."""
        time.sleep(3600)


def measure_looks() -> dict[str, float]:
    """Seconds that Ray takes to find which of so many answers have arrived, while none has.

    A pool waits for two answers of each worker.
    """
    actor = ray.remote(num_cpus=0)(Sleeper).remote()
    seconds: dict[str, float] = {}
    waiting: list[Any] = []
    for workers in CLUSTERS:
        waiting += [actor.sleep.remote() for _ in range(2 * workers - len(waiting))]
        began = time.monotonic()
        for _ in range(20):
            ray.wait(waiting, num_returns=1, timeout=0)
        seconds[str(workers)] = (time.monotonic() - began) / 20
    ray.kill(actor)
    return seconds


def measure_update(agent: Agent) -> float:
    """Seconds to ask for and tell a generation of the paper's size."""
    search = Search(agent.parameters.size, PAPER_POPULATION, SIGMA, seed=0)
    seconds = []
    for number in range(5):
        began = time.process_time()
        search.ask()
        search.tell(np.random.default_rng(number).normal(size=PAPER_POPULATION))
        seconds.append(time.process_time() - began)
    return statistics.mean(seconds)


def measure(workers: Sequence[int]) -> dict[str, Any]:
    """All measurements."""
    agent = read_agent(AGENT)
    spec = world(agent)
    prepare(spec.env)
    pools = []
    for count in workers:
        pools.append(
            {"backend": "local"}
            | measure_pool(partial(LocalPool, spec, count, 600.0), count, agent)
        )
        say(f"scaling: {pools[-1]}")
    connect("local", max(workers))
    for count in workers:
        pools.append(
            {"backend": "ray"} | measure_pool(partial(RayPool, spec, count, 600.0), count, agent)
        )
        say(f"scaling: {pools[-1]}")
    return {
        "cores": available_cores(),
        "load": os.getloadavg()[0],
        "generation": {
            "population": POPULATION,
            "episodes": EPISODES,
            "steps": SHORT,
            "num_envs": NUM_ENVS,
        },
        "pools": pools,
        "job_seconds": measure_jobs(agent),
        "ray": measure_messages(agent),
        "looks": measure_looks(),
        "update": measure_update(agent),
        **provenance(),
    }


def simulations(measured: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Generations of the paper's size on clusters of several sizes."""
    costs = Costs(**measured["ray"], update=measured["update"])
    for workers in CLUSTERS:
        for size, seconds in measured["job_seconds"].items():
            jobs = PAPER_POPULATION * PAPER_EPISODES // int(size)
            for overlap in (False, True):
                shares = simulate(workers, drawn(seconds, jobs, SIMULATED), costs, overlap)
                values = {name: round(value, 4) for name, value in asdict(shares).items()}
                yield {"workers": workers, "num_envs": int(size), "overlap": overlap} | values


def show(title: str, rows: Sequence[dict[str, Any]]) -> None:
    """Print rows as a table."""
    table = Table(title=title, title_justify="left")
    for name in rows[0]:
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(*(f"{v:.3f}" if isinstance(v, float) else str(v) for v in row.values()))
    console.print(table)


def main() -> None:
    """Measure, simulate, write and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--simulate", action="store_true", help="from the measurements in --out")
    parser.add_argument("--out", type=Path, default=Path("data/scaling.json"))
    chosen = parser.parse_args()
    result = read_json(chosen.out) if chosen.simulate else measure(chosen.workers)
    result["simulated"] = list(simulations(result))
    write_json(chosen.out, result)
    show("Measured", result["pools"])
    show("Simulated: 64 candidates of 16 episodes", result["simulated"])


if __name__ == "__main__":
    main()
