"""Runs that differ in the training seed: a table of them, and cells of tables over seeds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tables
from scipy import stats

from worldmodels.config.choices import WorldKind
from worldmodels.reporting.records import Record, frame_skip
from worldmodels.reporting.scores import AGENT_IN_DREAM, Score


def agents(
    runs: Sequence[dict[str, Any]],
    failed: float | None = None,
    second: Sequence[dict[str, Any]] = (),
) -> str:
    """The agents of runs that differ in the seed alone, and the mean over seeds.

    Args:
        runs: of ``stage=all`` as `render.take_run` keeps them, or of ``stage=iterate`` as
            `rounds.taken` does, with the agent of the last round.
        failed: returns below it are counted; None: they are not.
        second: evaluations of the same agents on other episodes, in the order of `runs`, as
            `render.take_run` keeps them; none: the table has no column of them.
    """
    dreamt = all(AGENT_IN_DREAM in run["scores"] for run in runs)
    header = (
        *("seed", *SCORE_HEADER),
        *(() if failed is None else (f"below {failed:.0f}",)),
        *(("predicted",) if dreamt else ()),
        *((f"{_episodes(second):,} further episodes",) if second else ()),
        *("simulator steps", "hours", "CPU hours"),
    )
    rows: list[tuple[str, ...]] = []
    for run, again in zip(runs, second or [{}] * len(runs), strict=True):
        agent = tables.score_of("agent", run["scores"]["agent"])
        failures = sum(value < (failed or 0) for value in agent.returns)
        rows.append(
            (
                str(run["stages"]["controller"]["config"]["seed"]),
                *score_cells(agent),
                *(() if failed is None else (f"{failures} of {len(agent.returns)}",)),
                *((f"{run['scores'][AGENT_IN_DREAM]['mean']:.0f}",) if dreamt else ()),
                *((_mean_and_std(again),) if again else ()),
                f"{_steps(run):,}",
                f"{tables.wall_s(run) / 3600:.1f}",
                f"{_cpu_s(run) / 3600:.1f}",
            )
        )
    if len(runs) > 1:
        last = ["mean ± std of seeds", tables.over_seeds(runs, 1), *("",) * (len(header) - 2)]
        if second:
            last[-4] = tables.over_seeds(second, 1)
        rows.append(tuple(last))
    return tables.markdown_table(header, rows)


SCORE_HEADER = ("mean ± std", "95 % interval", "median")


def score_cells(agent: Score) -> tuple[str, str, str]:
    """The cells of an agent's score under `SCORE_HEADER`."""
    return (
        f"**{agent.mean:.1f}** ± {agent.std:.1f}",
        f"{agent.interval[0]:.1f} to {agent.interval[1]:.1f}",
        f"{statistics.median(agent.returns):.1f}",
    )


def _episodes(runs: Sequence[dict[str, Any]]) -> int:
    """Episodes that the agent of each run was evaluated on; an error where they differ."""
    (count,) = {len(run["scores"]["agent"]["returns"]) for run in runs}
    return count


def _mean_and_std(run: dict[str, Any]) -> str:
    agent = tables.score_of("agent", run["scores"]["agent"])
    return f"{agent.mean:.1f} ± {agent.std:.1f}"


def _steps(run: dict[str, Any]) -> int:
    """Steps of the simulator, of collection and of a search in the environment."""
    if "rounds" in run:
        return _skip(run["stages"]["rollouts"]) * int(run["rounds"][-1]["frames"]["total"])
    total = 0
    for name, manifest in run["stages"].items():
        stage, summary = name.rpartition("/")[-1], manifest["summary"]
        if stage == "rollouts":
            total += _skip(manifest) * summary["frames"]
        elif stage == "controller" and summary["world"] == WorldKind.real.name:
            total += _skip(manifest) * summary["steps"]
    return total


def _skip(manifest: dict[str, Any]) -> int:
    """Steps of the simulator for each step of an episode of a stage."""
    return frame_skip(Record(Path("manifest.json"), manifest))


def _cpu_s(run: dict[str, Any]) -> float:
    found = run.get("cpu_s", sum(m["resources"]["cpu_s"] for m in run["stages"].values()))
    return float(found)


def with_interval(values: Sequence[float], form: str) -> str:
    """Mean and its 95 % interval by Student's t; the mean alone of fewer than three values, and
    where all three numbers are written alike.

    Args:
        values: one for each seed.
        form: of each number, as `format` takes it.
    """
    mean, between = statistics.mean(values), interval(values)
    if between is None:
        return format(mean, form)
    low, high = (format(bound, form) for bound in between)
    return format(mean, form) + (f" ({low} to {high})" if low != high else "")


def interval(values: Sequence[float]) -> tuple[float, float] | None:
    """The 95 % interval of the mean by Student's t; None for fewer than three values."""
    mean, count = statistics.mean(values), len(values)
    if count < 3:
        return None
    half = float(stats.t.ppf(0.975, count - 1)) * statistics.stdev(values) / math.sqrt(count)
    return mean - half, mean + half


def with_range(values: Sequence[float], form: str) -> str:
    """Mean, and the least and greatest value; the mean alone where all are written alike.

    Args:
        values: one for each seed.
        form: of each number, as `format` takes it.
    """
    mean, low, high = (
        format(value, form) for value in (statistics.mean(values), min(values), max(values))
    )
    return mean if low == high else f"{mean} ({low} to {high})"
