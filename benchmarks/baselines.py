"""Model-free baselines beside world models: ``make baselines``, three seeds, many hours.

The table ``environment`` has PPO, DQN and SAC from pixels in the native CarRacing. The table
``learned`` has controllers and PPO that are trained in the learned model of a shipped agent, with
equal numbers of steps in it. Policies are evaluated on the episodes of ``laptop-second`` and
``quick-second`` (docs/results-carracing.md), or on those of docs/results-takecover.md; nothing is
chosen by them. The learning rate of a baseline of the first table is chosen before, from short
runs with one seed, by the mean return on their selection seeds; PPO without normalised rewards has
that of PPO.

    python benchmarks/baselines.py                      # all rows, seeds 1 to 3
    python benchmarks/baselines.py learned --seed 1     # a table, one seed
    python benchmarks/baselines.py environment/ppo      # one row
    python benchmarks/baselines.py --list               # the commands, one a line

After each run it adds the figures to ``baselines.json``. Runs that this file has are skipped, so
that the script can be stopped and started again, on another machine too with a copy of the file; a
run that was stopped continues. Figures of a row whose overrides or budget have changed since are
made again. Processes may run different rows beside each other, and different
seeds of one row once its learning rate is chosen.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from commands import changed, command_line, finished, returns_of, run_all

from worldmodels.files.atomic import read_json
from worldmodels.reporting.progress import progress_of
from worldmodels.reporting.scores import AGENT_IN_DREAM, RANDOM
from worldmodels.runs.manifests import MANIFEST
from worldmodels.runs.provenance import provenance
from worldmodels.runs.tracking import say

SEEDS = (1, 2, 3)
TUNING_SEED = 100
"""Of the runs that choose a learning rate: their selection episodes are those of no other run."""
DREAM_STEPS = 4_000_000
RATES = ("1e-4", "3e-4", "1e-3")
"""Learning rates of a baseline in the environment; each falls to a tenth in the last step."""
TRACKS = ("evaluate.engine=native", "evaluate.first_seed=10_000", "evaluate.episodes=1000")


@dataclass(frozen=True)
class Row:
    """A row of a table.

    Args:
        table: ``environment`` or ``learned``.
        name: of its runs.
        what: its first cell.
        stage: that trains: ``baseline`` or ``controller``.
        words: overrides of its commands.
        budget: the key that ends its training, and the value.
        tuning_steps: of each run from which its learning rate is chosen; None: it is not.
        rate_of: name of another row, whose learning rate it has.
    """

    table: str
    name: str
    what: str
    stage: str
    words: tuple[str, ...]
    budget: tuple[str, int]
    tuning_steps: int | None = None
    rate_of: str | None = None

    @property
    def settings(self) -> dict[str, Any]:
        """What the figures of a run depend on, as JSON holds it."""
        return {"words": [*self.words], "budget": [*self.budget]}

    @property
    def tuning_settings(self) -> dict[str, Any]:
        """The same of the runs from which the learning rate is chosen."""
        return {"words": [*self.words], "budget": [self.budget[0], self.tuning_steps]}

    def outdated(self, run: Mapping[str, Any]) -> bool:
        """Whether a run of the file is of this row with other settings.

        Args:
            run: as the file has it; without settings it is of an older version, and is taken.
        """
        same = (run["table"], run["name"]) == (self.table, self.name)
        return same and any(run.get(key, value) != value for key, value in self.settings.items())


def _in_environment(algorithm: str, steps: int, tuning: int, *words: str) -> Row:
    named = (f"baseline.algorithm={algorithm}", "env.frame_skip=4", *words)
    budget = "baseline.total_steps", steps
    return Row(
        *("environment", algorithm, algorithm.upper(), "baseline"),
        (*named, f"baseline.checkpoint_steps={min(50_000, tuning)}", *TRACKS),
        budget,
        tuning,
    )


def _in_learned_model(env: str, stage: str) -> Row:
    title, words = _AGENTS[env]
    key, what, own = _OPTIMISERS[stage]
    words = (*words, *own, "controller.world=dream")
    name = f"{env}-{what.lower()}"
    return Row("learned", name, f"{title}: {what}", stage, words, (key, DREAM_STEPS))


_AGENTS = {
    "carracing": (
        "CarRacing",
        ("preset=dream-rounds", "base=pretrained/carracing-dream", *TRACKS),
    ),
    "takecover": ("Take Cover", ("preset=laptop", "env=takecover", "base=pretrained/takecover")),
}
"""Environment -> its title, and words for the learned model of an agent that ships."""
_OPTIMISERS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "baseline": (
        "baseline.total_steps",
        "PPO",
        (
            *("baseline.num_envs=64", "baseline.checkpoint_steps=250_000"),
            *("baseline.learning_rate=3e-4", "baseline.final_learning_rate=3e-5"),
            *("baseline.eval_episodes=64",),
            "baseline.options={n_steps: 128, batch_size: 1024, n_epochs: 4}",
        ),
    ),
    "controller": (
        "controller.total_steps",
        "CMA-ES",
        ("controller.optimizer=cma_es", "controller.diagonal=true", "controller.eval_interval=5"),
    ),
}
"""Stage -> the key of its budget, what trains, and its words."""
_PPO = _in_environment(
    *("ppo", 1_200_000, 300_000),
    "baseline.options={n_steps: 256, batch_size: 256, n_epochs: 4,"
    " policy_kwargs: {net_arch: [256], log_std_init: -1.0}}",
)
ROWS = (
    _PPO,
    replace(
        _PPO,
        name="ppo-raw",
        what="PPO, rewards not normalised",
        words=(*_PPO.words, "baseline.normalise_reward=false"),
        tuning_steps=None,
        rate_of=_PPO.name,
    ),
    _in_environment(
        *("dqn", 400_000, 200_000, "env.kwargs={continuous: false}"),
        "baseline.options={buffer_size: 100_000, exploration_final_eps: 0.02}",
    ),
    _in_environment(
        "sac", 50_000, 25_000, "baseline.options={batch_size: 64, ent_coef: auto_0.01}"
    ),
    *(_in_learned_model(env, stage) for env in _AGENTS for stage in _OPTIMISERS),
)


_EMPTY: dict[str, Any] = {"tuning": {}, "tuning_settings": {}, "runs": []}
"""Content of a file that does not exist yet."""


@dataclass(frozen=True)
class Plan:
    """The commands of the benchmark.

    Args:
        data: folder of all runs.
        smoke: next to no training, for a test.
    """

    data: Path
    smoke: bool = False

    def run(self, row: Row, seed: int) -> str:
        """The name of a run."""
        return f"baselines/{row.table}/{row.name}-{seed}"

    def tuning_run(self, row: Row, rate: str) -> str:
        """The name of a run that a learning rate is chosen from."""
        return f"baselines/tuning/{row.name}-{rate}"

    def tuning(self, row: Row) -> Iterator[list[str]]:
        """The runs that a row's learning rate is chosen from, of one command each."""
        if row.tuning_steps is not None:
            short = replace(row, budget=(row.budget[0], row.tuning_steps))
            for rate in RATES:
                run = self.tuning_run(row, rate)
                yield self._command(row.stage, short, run, TUNING_SEED, rate)

    def commands(self, row: Row, seed: int) -> Iterator[list[str]]:
        """Training and evaluation; the learning rate is ``?`` where it is not chosen yet."""
        rate = self.rate(row)
        for stage in (row.stage, "evaluate"):
            yield self._command(stage, row, self.run(row, seed), seed, rate)

    def _command(self, stage: str, row: Row, run: str, seed: int, rate: str | None) -> list[str]:
        key, value = row.budget
        rates: tuple[str, ...] = ()
        if rate is not None:
            last = rate if rate == "?" else f"{float(rate) / 10:g}"
            rates = (f"baseline.learning_rate={rate}", f"baseline.final_learning_rate={last}")
        return [
            *("python", "-m", "worldmodels", f"stage={stage}", *row.words, *rates),
            *(f"run={run}", f"seed={seed}", f"data={self.data}", "evaluate.video=false"),
            f"{key}={value}",
            *(_smoke(row) if self.smoke else ()),
        ]

    @property
    def record(self) -> dict[str, Any]:
        """What ``baselines.json`` has: ``runs``; ``tuning``, by row the mean return on the
        selection seeds by learning rate; and ``tuning_settings``, by row those of its runs."""
        found: dict[str, Any] = read_json(self.path) if self.path.exists() else {}
        return _EMPTY | found

    @property
    def path(self) -> Path:
        """The file of the results."""
        return self.data / "baselines.json"

    def tuned(self, row: Row) -> dict[str, float]:
        """Learning rate -> mean return on the selection seeds, as far as it is known."""
        return tuned(self.record, row)

    def rate(self, row: Row) -> str | None:
        """The learning rate with the highest mean, ``?`` until all are known; None: no choice."""
        row = tuned_row(row)
        if row.tuning_steps is None:
            return None
        found = self.tuned(row)
        return max(found, key=found.__getitem__) if len(found) == len(RATES) else "?"

    def result(self, row: Row, seed: int) -> dict[str, Any]:
        """The figures of a finished run."""
        folder = self.data / self.run(row, seed)
        scores = read_json(folder / "evaluate" / "scores.json")
        trained = read_json(folder / row.stage / MANIFEST)
        folders = {name: folder / name for name in (row.stage, "evaluate")}
        policies = {"agent": "agent", "random": RANDOM, "predicted": AGENT_IN_DREAM}
        return {
            "table": row.table,
            "name": row.name,
            "what": row.what,
            "seed": seed,
            **row.settings,
            "learning_rate": trained["config"].get("baseline.learning_rate"),
            "returns": returns_of(scores, policies),
            "first_seed": scores["agent"]["seeds"][0],
            "steps": trained["summary"]["steps"],
            "points": progress_of(folders).points,
            "wall_s": trained["wall_s"],
            "cpu_s": trained["resources"]["cpu_s"],
            "commit": trained["commit"],
        }


def _smoke(row: Row) -> list[str]:
    """Words of a test."""
    size = "policy_kwargs: {net_arch: [8]}"
    options = "n_steps: 16, batch_size: 16, n_epochs: 1"
    if row.name in ("dqn", "sac"):
        options = "buffer_size: 64, learning_starts: 16, batch_size: 8, gradient_steps: 1"
    return [
        *("env.max_steps=12", "controller.max_steps=8", "controller.eval_episodes=2"),
        *("controller.population=4", "controller.episodes=2"),
        *("baseline.num_envs=2", "baseline.checkpoint_steps=32", "baseline.eval_episodes=2"),
        *(f"baseline.options={{{options}, {size}}}", "evaluate.episodes=2"),
        f"{row.budget[0]}=64",
    ]


def main() -> None:
    """Run the missing runs, and add each one to ``baselines.json``."""
    options, chosen = command_line(__doc__, ROWS, SEEDS)
    plan = Plan(options.data, options.smoke)
    if options.list:
        for row in chosen:
            run_all(plan.tuning(row), listed=True)
    # All rows of one seed before the next seed begins.
    for row, seed in ((row, seed) for seed in options.seeds for row in chosen):
        if options.list:
            run_all(plan.commands(row, seed), listed=True)
        elif not finished(without_outdated(plan.record, row), row, seed):
            tune(plan, tuned_row(row))
            run_all(plan.commands(row, seed))
            keep(plan, row, seed)


def tuned_row(row: Row) -> Row:
    """The row whose runs choose the learning rate of `row`."""
    return row if row.rate_of is None else next(one for one in ROWS if one.name == row.rate_of)


def tuned(record: Mapping[str, Any], row: Row) -> dict[str, float]:
    """As `Plan.tuned`, of the content of the file."""
    settings = record["tuning_settings"].get(row.name)  # an older version did not note them
    same = settings in (None, row.tuning_settings)
    return dict(record["tuning"].get(row.name, {})) if same else {}


def without_outdated(record: Mapping[str, Any], row: Row) -> list[dict[str, Any]]:
    """The runs of the file's content, without those of the row with other settings."""
    return [run for run in record["runs"] if not row.outdated(run)]


def tune(plan: Plan, row: Row) -> None:
    """Run the missing runs of those that a learning rate is chosen from."""
    for rate, command in zip(RATES, plan.tuning(row), strict=False):
        if rate in plan.tuned(row):
            continue
        run_all([command])
        manifest = read_json(plan.data / plan.tuning_run(row, rate) / row.stage / MANIFEST)
        mean, about = float(manifest["summary"]["selection_mean"]), provenance()
        with changed(plan.path) as record:
            now = _EMPTY | record
            tuning = now["tuning"] | {row.name: tuned(now, row) | {rate: mean}}
            settings = now["tuning_settings"] | {row.name: row.tuning_settings}
            record |= now | about | {"tuning": tuning, "tuning_settings": settings}


def keep(plan: Plan, row: Row, seed: int) -> None:
    """Add a finished run to the file."""
    result, about = plan.result(row, seed), provenance()
    with changed(plan.path) as record:
        now = _EMPTY | record
        # The table would average the run with those of other settings.
        record |= now | about | {"runs": [*without_outdated(now, row), result]}
    count = len(record["runs"])
    say(f"baselines: {row.table}/{row.name}, seed {seed}: {count} runs in {plan.path}")


if __name__ == "__main__":
    main()
