"""Stage ``plan``: what a run of this configuration will take on this machine, before it is run."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import psutil
from rich.table import Table

from worldmodels.config.choices import SweepMethod
from worldmodels.config.schema import Config, bootstrap_config, flat
from worldmodels.envs.engines import prepare
from worldmodels.files.atomic import write_json
from worldmodels.planning.estimate import Data, Estimate, Rates, StagePlan, together
from worldmodels.runs.costs import duration, size
from worldmodels.runs.provenance import provenance
from worldmodels.runs.tracking import console, say
from worldmodels.stages import iterate
from worldmodels.stages.calibration import calibrate
from worldmodels.stages.context import Context
from worldmodels.stages.diagnosis import memory_limit
from worldmodels.system.cores import available_cores, cores_in_words
from worldmodels.system.disk import existing
from worldmodels.tuning.population import ends

AMOUNTS = (
    *("seed", "bootstrap", "rollouts.", "vae.epochs", "rnn.epochs", "rnn.baselines"),
    *("rnn.newest_rounds", "rnn.failure_", "iterate.", "evaluate.episodes", "evaluate.first_seed"),
    *("controller.generations", "controller.total_steps", "controller.first_episodes"),
    *("controller.final_sigma", "controller.sigma", "controller.stall_steps"),
    *("controller.termination_penalty", "actor_critic.updates"),
)
"""Keys of a bootstrap run or a round that change how much there is to do, or what is learned, and
not how fast it is done."""


def run(context: Context) -> None:
    """Calibrate, print the plan, and write it to ``plan.json`` in the folder of the run."""
    config, started = context.config, time.time() - psutil.Process().create_time()
    began = time.monotonic()
    played_on = str(context.runtime.real_device)
    prepare(context.runtime.env_spec(), played_on)
    compiled = time.monotonic() - began
    device, workers = context.runtime.device.type, context.runtime.processes(played_on)
    say(
        f"plan: calibrating for env={config.env.name}, {cores_in_words()}, {workers} workers,"
        f" device {device}; about a minute"
    )
    stages = {"start": _start(started, compiled)}
    if config.sweep.space:
        planned, known = _of_run(context)
        stages = _of_sweep(config, stages | planned, known[_rates_key(config)])
    else:
        planned, known = _of_rounds(context) if config.iterate.schedule else _of_run(context)
        stages |= planned
    _write(context, stages, known, time.monotonic() - began)
    console.print(_table(stages, config.price_per_hour))
    _say_limits(context, stages)


def _of_run(context: Context) -> tuple[dict[str, StagePlan], dict[str, Rates]]:
    """What is planned for ``stage=all``, and the rates by `_rates_key`."""
    config, before = context.config, context.inputs.bootstrap is not None
    parts = [bootstrap_config(config), config] if before else [config]
    known, earlier = _calibrated(parts), list[Data]()
    stages: dict[str, StagePlan] = {}
    for part in parts:
        prefix = "" if part is config else "bootstrap/"
        estimate = Estimate(part, known[_rates_key(part)], earlier)
        stages |= {prefix + name: plan for name, plan in estimate.stages(main=not prefix)}
        earlier.append(estimate.collected)
    return stages, known


def _of_rounds(context: Context) -> tuple[dict[str, StagePlan], dict[str, Rates]]:
    """What is planned for ``stage=iterate``, each stage in all rounds; and the rates by
    `_rates_key`."""
    count, patience = context.config.iterate.rounds, context.config.iterate.patience
    parts = [iterate.configured(context, number) for number in range(1, count + 1)]
    known, earlier = _calibrated(parts), list[Data]()
    rounds: list[dict[str, StagePlan]] = []
    for part in parts:
        estimate = Estimate(part, known[_rates_key(part)], earlier, rounds=True)
        rounds.append(dict(estimate.stages(main=True)))
        earlier.append(estimate.collected)
    may_end = patience is not None
    notes = [f"no round is left out by iterate.patience={patience}"] * may_end
    stages = {
        f"{name}, {count} rounds": together([one[name] for one in rounds], *notes, at_most=may_end)
        for name in rounds[0]
    }
    return stages, known


def _calibrated(parts: Sequence[Config]) -> dict[str, Rates]:
    """The rates of several configurations, by `_rates_key`."""
    policies = {part.rollouts.policy for part in parts}
    known: dict[str, Rates] = {}
    for part in reversed(parts):  # the main run's rates mostly serve the bootstrap run too
        key = _rates_key(part)
        if key not in known:
            with tempfile.TemporaryDirectory(prefix="worldmodels-plan-") as folder:
                known[key] = calibrate(part, Path(folder), policies)
    return known


def _start(started: float, compiled: float) -> StagePlan:
    """Imports, and loading or compiling the simulator."""
    notes = [f"of which {compiled:.0f} s compiling the simulator, which a next command finds done"]
    own = psutil.Process().memory_info().rss
    return StagePlan(started + compiled, own, disk=0, assumes=notes if compiled > 10 else [])


def _of_sweep(config: Config, stages: dict[str, StagePlan], rates: Rates) -> dict[str, StagePlan]:
    """What is planned for ``stage=sweep``: the stages that run once, and the trials or the members
    of a population.

    Args:
        config: with a space.
        stages: of a run of that configuration.
        rates: that they are planned with.
    """
    sweep = config.sweep
    order = ["rollouts", "vae", "rnn", "controller"]
    order = order[: order.index(sweep.target.name) + 1]
    sections = {key.partition(".")[0] for key in sweep.space}
    made = [number for number, name in enumerate(order) if name in sections]
    first = 0 if sections & {"seed", "env"} else min([*made, len(order) - 1])
    own = [stages[name] for name in order[first:]]
    once = {name: stages[name] for name in ("start", *order[:-1])}
    if sweep.method is SweepMethod.population:
        name = sweep.target.name
        count = len(ends(getattr(config, name).epochs, sweep.interval))
        begun = (count - 1) * rates.base[name].seconds  # an interval begins and ends as a stage
        members = replace(
            stages[name],
            seconds=sweep.members * (stages[name].seconds + begun),
            disk=2 * sweep.members * stages[name].disk,
        )
        return {**once, f"{sweep.members} members, {count} intervals": members}
    trials = together(
        own * sweep.trials,
        "none is stopped early, and each takes as long as with the configured values",
        at_most=True,
    )
    return {**once, f"{sweep.trials} trials": trials}


def _rates_key(config: Config) -> str:
    """What the rates of a configuration depend on."""
    values = flat(**vars(replace(config, bootstrap={})))
    return repr({k: v for k, v in values.items() if not k.startswith(AMOUNTS)})


def _cost(seconds: float, price_per_hour: float | None) -> float | None:
    return None if price_per_hour is None else seconds / 3600 * price_per_hour


def _record(plan: StagePlan, price_per_hour: float | None) -> dict[str, Any]:
    return {
        "wall_s": round(plan.seconds, 1),
        "at_most": plan.at_most,
        "peak_bytes": {"process": plan.process, "worker": plan.worker, "gpu": plan.gpu},
        "workers": plan.workers,
        "memory_bytes": plan.memory,
        "disk_bytes": plan.disk,
        "cost": _cost(plan.seconds, price_per_hour),
        "assumes": plan.assumes,
    }


def _write(
    context: Context, stages: dict[str, StagePlan], known: dict[str, Rates], took: float
) -> None:
    config, price = context.config, context.config.price_per_hour
    context.run.root.mkdir(parents=True, exist_ok=True)
    write_json(
        context.run.root / "plan.json",
        {
            **provenance(),
            "cores": available_cores(),
            "device": context.runtime.device.type,
            "workers": context.runtime.processes(str(context.runtime.real_device)),
            "config": flat(**vars(config)),
            "calibration_s": round(took, 1),
            "rates": [asdict(rates) for rates in known.values()],
            "stages": {name: _record(plan, price) for name, plan in stages.items()},
        },
    )


def _table(stages: dict[str, StagePlan], price_per_hour: float | None) -> Table:
    """A row for each stage and for all, for a terminal."""
    table = Table("stage", "time", "memory", "disk")
    if price_per_hour is not None:
        table.add_column("cost")
    rows = [(name, [plan]) for name, plan in stages.items()]
    for name, plans in [*rows, ("all", list(stages.values()))]:
        seconds = sum(plan.seconds for plan in plans)
        bound = "≤ " if any(plan.at_most for plan in plans) else ""
        peak = max(plans, key=lambda plan: plan.memory)
        memory = size(peak.process)
        if peak.worker:
            memory += f" + {peak.workers} × {size(peak.worker)}"
        if peak.gpu:
            memory += f", GPU {size(peak.gpu)}"
        row = [name, bound + duration(seconds), memory, size(sum(plan.disk for plan in plans))]
        if price_per_hour is not None:
            row.append(f"{bound}{_cost(seconds, price_per_hour):,.4g}")
        table.add_row(*row, end_section=name == list(stages)[-1])
    return table


def _say_limits(context: Context, stages: dict[str, StagePlan]) -> None:
    """Assumptions, and what this machine has too little of."""
    for note in dict.fromkeys(
        f"{name}: {note}" for name, plan in stages.items() for note in plan.assumes
    ):
        say(f"plan: assumed for {note}")
    needed = max(plan.memory for plan in stages.values())
    memory = psutil.virtual_memory().total
    memory = min(memory, memory_limit() or memory)
    if needed > memory:
        say(
            f"plan: {size(needed)} of memory may be needed, {size(memory)} can be had here; choose"
            " a smaller env.num_envs or fewer workers.processes"
        )
    wanted = sum(plan.disk for plan in stages.values())
    free = shutil.disk_usage(existing(context.run.root)).free
    if wanted > free:
        say(f"plan: {size(wanted)} of disk are needed, {size(free)} are free; choose another data=")
    say(f"plan: wrote {context.run.root / 'plan.json'}")
