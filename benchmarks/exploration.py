"""Exploration for data in CarRacing: what random actions and intrinsic rewards are worth.

Every run records as many frames, in rounds of ``stage=iterate``: the first with random actions, the
later ones with those of the row, or with a controller that was trained in the learned model for
the row's objective. Then a controller is trained for the task's reward, from the beginning and only
in the learned model, and evaluated on tracks that no other stage uses. Rows of the table
``television`` have a noisy television, which the brake turns on. The encoder of all runs is that of
``pretrained/carracing-dream``, without further training, so that latents are comparable.

    python benchmarks/exploration.py                    # all rows, seeds 1 to 3: a day on one core
    python benchmarks/exploration.py plain --seed 1     # a table, one seed
    python benchmarks/exploration.py television/reward  # one row
    python benchmarks/exploration.py --list             # the commands, one a line

After each run it adds the figures to ``exploration.json``. Runs that this file has are skipped, so
that the script can be stopped and started again, on another machine too with a copy of the file; a
run that was stopped continues.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import explored
import numpy as np
from commands import changed, command_line, finished, run_all

from worldmodels.agents.model_files import load_members
from worldmodels.data.episodes import EpisodeSet
from worldmodels.data.latents import LatentSet
from worldmodels.files.atomic import read_json
from worldmodels.runs.provenance import provenance
from worldmodels.runs.tracking import say

SEEDS = (1, 2, 3)
AGENT = "pretrained/carracing-dream"
RANDOM = {
    "noise": ("uniform", "independent uniform actions"),
    "brownian": ("brownian", "Brownian actions"),
    "sticky": ("sticky_uniform", "uniform actions, held for 1 to 10 steps"),
    "persistent": ("persistent_uniform", "uniform actions, longest hold drawn per episode"),
}
OBJECTIVES = {
    "reward": "controller trained for the task's reward",
    "disagreement": "controller trained for disagreement of 3 members",
    "distillation": "controller trained for random network distillation",
}
BRAKE, FRAME_SKIP = 2, 4


@dataclass(frozen=True)
class Row:
    """A row of the table.

    Args:
        table: ``plain``, or ``television`` with one.
        name: of `RANDOM` or `OBJECTIVES`.
    """

    table: str
    name: str

    @property
    def what(self) -> str:
        """The row's first cell."""
        return OBJECTIVES[self.name] if self.name in OBJECTIVES else RANDOM[self.name][1]


ROWS = (
    *(Row("plain", name) for name in (*RANDOM, *OBJECTIVES)),
    *(Row("television", name) for name in ("brownian", *OBJECTIVES)),
)


@dataclass(frozen=True)
class Size:
    """How much is done.

    Args:
        rounds: of collection.
        episodes: of a round.
        steps: of an episode.
        generations: of a search for the row's objective.
        last: generations of the search for the reward.
        more: further overrides of every command.
    """

    rounds: int
    episodes: int
    steps: int
    generations: int
    last: int
    more: tuple[str, ...] = ()


FULL = Size(4, 60, 100, 12, 30)
SMOKE = Size(
    *(2, 4, 12, 1, 1),
    (
        *("rnn.epochs=1", "rnn.hidden_size=16", "rnn.batch_size=4", "rnn.sequence_length=12"),
        *("controller.population=4", "controller.episodes=2", "controller.eval_episodes=2"),
        *("controller.pca_components=8", "controller.max_steps=5", "evaluate.episodes=2"),
        "env.max_steps=40",
    ),
)
"""Of a test: seconds."""


@dataclass(frozen=True)
class Plan:
    """The commands of the benchmark.

    Args:
        size: how much is done.
        data: folder of all runs.
    """

    size: Size
    data: Path

    def run(self, row: Row, seed: int) -> str:
        """The name of the run that collects."""
        return f"exploration/{row.table}/{row.name}-{seed}"

    def last_run(self, row: Row, seed: int) -> str:
        """The name of the run whose controller is trained for the task's reward."""
        return f"{self.run(row, seed)}-reward"

    def commands(self, row: Row, seed: int) -> Iterator[list[str]]:
        """Collection in rounds, then the controller, and its evaluation."""
        curious, size = row.name in OBJECTIVES, self.size
        change: dict[str, Any] = {"round": 2, "rnn": {"epochs": 1 if size is SMOKE else 6}}
        if not curious:
            change["rollouts"] = {"policy": RANDOM[row.name][0]}
        schedule: list[dict[str, Any]] = [change]
        if size.rounds > 2:  # nobody collects with the last one's controller
            schedule.append({"round": size.rounds, "controller": {"generations": 1}})
        written = json.dumps(schedule).replace('"', "")
        yield [
            *self._words("iterate", self.run(row, seed), seed, row),
            f"base={AGENT}",
            f"iterate.rounds={size.rounds}",
            f"iterate.schedule={written}",
            f"rollouts.policy={RANDOM['brownian' if curious else row.name][0]}",
            f"controller.objective={row.name if curious else 'reward'}",
            f"controller.generations={size.generations if curious else 1}",
            "evaluate.episodes=2",
        ]
        base = f"base={self.run(row, seed)}/round-{size.rounds}"
        for stage in ("controller", "evaluate"):
            last = f"controller.generations={size.last}"
            yield [*self._words(stage, self.last_run(row, seed), seed, row), base, last]

    def tests(self) -> dict[str, list[list[str]]]:
        """The runs of the common test set: the commands of each."""
        policies: dict[str, tuple[str, ...]] = {
            name: (f"rollouts.policy={policy}",) for name, (policy, _) in RANDOM.items()
        }
        policies["agent"] = ("rollouts.policy=controller", "rollouts.noise=0.1")
        return {
            f"exploration/test/{name}": [
                [
                    *self._words(stage, f"exploration/test/{name}", 1000, Row("plain", name)),
                    *(f"base={AGENT}", *words, "rnn.epochs=0", "rnn.members=1"),
                    f"rollouts.episodes={min(20, self.size.episodes)}",
                ]
                for stage in ("rollouts", "vae", "rnn")
            ]
            for name, words in policies.items()
        }

    def _words(self, stage: str, run: str, seed: int, row: Row) -> list[str]:
        size, watching = self.size, row.table == "television"
        return [
            *("python", "-m", "worldmodels", f"stage={stage}", "preset=dream-rounds"),
            *(f"run={run}", f"seed={seed}", f"data={self.data}", "iterate.schedule=[]"),
            *("env.num_envs=16", "rollouts.frames=null", f"rollouts.episodes={size.episodes}"),
            *(f"rollouts.max_steps={size.steps}", "rollouts.stall_steps=null"),
            *("rollouts.mirrored_share=0", "rollouts.action_noise=0.3", "vae.epochs=0"),
            *("rnn.members=3", "rnn.epochs=20", "rnn.newest_rounds=null"),
            *("controller.optimizer=cma_es", "controller.population=32", "controller.episodes=8"),
            *("controller.diagonal=true", "controller.pca_components=48"),
            *("controller.eval_interval=6", "controller.eval_episodes=32"),
            *("evaluate.episodes=32", "evaluate.first_seed=60_000"),
            *((f"env.television={BRAKE}",) if watching else ()),
            *size.more,
        ]

    @property
    def path(self) -> Path:
        """The file of the results."""
        return self.data / "exploration.json"

    @property
    def runs(self) -> list[dict[str, Any]]:
        """The results that the file has."""
        return list(read_json(self.path)["runs"]) if self.path.exists() else []

    def result(self, row: Row, seed: int) -> dict[str, Any]:
        """The figures of a finished run.

        Raises:
            SystemExit: its encoder is not that of the test set.
        """
        root, rounds = self.data / self.run(row, seed), range(1, self.size.rounds + 1)
        folders = [root / f"round-{number}" for number in rounds]
        tests = [self.data / name for name in self.tests()]
        encoders = {encoder(folder) for folder in (*folders, *tests)}
        if len(encoders) > 1:
            raise SystemExit(f"{root}: its encoder is not that of the test set; make both again")
        collected = EpisodeSet.open([folder / "rollouts" for folder in folders], "refuse")
        later = EpisodeSet.open([folder / "rollouts" for folder in folders[1:]], "refuse")
        latents = explored.means(LatentSet(folders[-1] / "rnn" / "latents.h5"))
        sets = [LatentSet(folder / "rnn" / "latents.h5") for folder in tests]
        reference = np.concatenate([explored.means(one) for one in sets])
        covered = explored.track(collected, FRAME_SKIP)
        last = self.data / self.last_run(row, seed)
        scores = read_json(last / "evaluate" / "scores.json")
        watching = row.table == "television"
        return {
            "table": row.table,
            "name": row.name,
            "what": row.what,
            "seed": seed,
            "frames": collected.num_frames,
            "tiles": covered.tiles,
            "cells": covered.cells,
            "log_determinant": explored.log_determinant(latents),
            "distance": explored.distance(reference, latents),
            "nll": explored.likelihood(load_members(folders[-1] / "rnn/rnn.safetensors"), sets),
            "returns": [round(value, 2) for value in scores["agent"]["returns"]],
            "watched": explored.watched(later, BRAKE) if watching else None,
            "commit": read_json(last / "controller" / "manifest.json")["commit"],
        }


def encoder(folder: Path) -> str:
    """The fingerprint of the encoder of a run."""
    found: str = read_json(folder / "vae" / "manifest.json")["fingerprint"]
    return found


def main() -> None:
    """Run the missing runs, and add each one to ``exploration.json``."""
    options, chosen = command_line(__doc__, ROWS, SEEDS)
    plan = Plan(SMOKE if options.smoke else FULL, options.data)
    # All rows of one seed before the next seed begins.
    wanted = [(row, seed) for seed in options.seeds for row in chosen]
    if options.list:
        run_all((line for lines in plan.tests().values() for line in lines), listed=True)
        run_all((line for row, seed in wanted for line in plan.commands(row, seed)), listed=True)
        return
    for row, seed in wanted:
        if finished(plan.runs, row, seed):
            continue
        for name, commands in plan.tests().items():
            if not (plan.data / name / "rnn" / "latents.h5").exists():
                run_all(commands)
        run_all(plan.commands(row, seed))
        keep(plan, row, seed)


def keep(plan: Plan, row: Row, seed: int) -> None:
    """Add a finished run to the file."""
    result, about = plan.result(row, seed), provenance()
    with changed(plan.path) as record:
        record |= {**about, "runs": [*record.get("runs", []), result]}
    count = len(record["runs"])
    say(f"exploration: {row.table}/{row.name}, seed {seed}: {count} runs in {plan.path}")


if __name__ == "__main__":
    main()
