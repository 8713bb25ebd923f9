"""The runs behind the tables of ``docs/results.md``: ``make study``, a day on two cores.

Each is a variant of ``run=laptop``, which must be there, on a tenth of its steps: with its V and M,
or with an M of its own, and judged on the native engine on seeds 0 to 99. Runs that are done are
passed over, so that it can be stopped and started again.

    python benchmarks/carracing_study.py --list      # the commands, one a line
    python benchmarks/carracing_study.py ablation    # one group of them
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from worldmodels.artifacts import JsonLines, provenance, read_json, write_json
from worldmodels.tracking import read_metrics, say

BUDGET = 4_000_000
"""Steps of a search in the game: a tenth of the laptop preset's."""
DREAM_BUDGET = 40_000_000
"""Steps of a search in the dream, which is as much faster."""
SEEDS = (1, 2, 3)


@dataclass(frozen=True)
class Row:
    """A row of a table.

    Args:
        group: its table.
        name: of its runs, with the seed after it.
        overrides: what differs from ``preset=laptop``.
        seeds: of its runs.
    """

    group: str
    name: str
    overrides: tuple[str, ...] = ()
    seeds: tuple[int, ...] = SEEDS

    @property
    def stages(self) -> tuple[str, ...]:
        """The stages that differ from the base's, and the judge."""
        own_memory = any(word.startswith("rnn.") for word in self.overrides)
        return (*(("rnn",) if own_memory else ()), "controller", "evaluate")

    def run(self, seed: int) -> str:
        """The name of a run."""
        return f"study/{self.group}/{self.name}-{seed}"

    def command(self, stage: str, seed: int) -> list[str]:
        """One stage of a run."""
        dream = "controller.world=dream" in self.overrides
        return [
            *("python", "-m", "worldmodels", f"stage={stage}", "preset=laptop", "base=laptop"),
            *(f"run={self.run(seed)}", f"seed={seed}", "rnn.baselines=false"),
            f"controller.budget={DREAM_BUDGET if dream else BUDGET}",
            *("evaluate.engine=native", "evaluate.video=false", *self.overrides),
        ]


def rows() -> list[Row]:
    """All tables, in the order of their worth."""
    dream = ("controller.world=dream", "controller.latent=sampled")
    table = [
        Row("ablation", "full"),
        Row("ablation", "vision", ("controller.features=z",)),
        Row("ablation", "vision-hidden", ("controller.features=z", "controller.hidden_units=40")),
        Row("ablation", "untrained-memory", ("rnn.epochs=0",)),
    ]
    table += [
        Row("dream", f"temperature-{t}", (*dream, f"controller.temperature={t}"), (1,))
        for t in (0.1, 0.5, 1.0, 1.15, 1.3)
    ]
    means = ("controller.world=dream", "rnn.latent=mean", "controller.temperature=1.0")
    table += [Row("dream", "means-1.0", means, (1,))]
    table += [
        Row("memory", "sampled", ("controller.latent=sampled",), (1,)),
        Row("memory", "shared-mixture", ("rnn.shared_mixture=true",), (1,)),
        Row("memory", "means", ("rnn.latent=mean",), (1,)),
        Row("memory", "one-gaussian", ("rnn.mixtures=1",), (1,)),
        Row("memory", "length-25", ("rnn.sequence_length=25", "rnn.batch_size=64"), (1,)),
        Row("memory", "length-400", ("rnn.sequence_length=400", "rnn.batch_size=4"), (1,)),
        Row("memory", "hidden-after", ("controller.hidden=after",), (1,)),
    ]
    table += [
        Row("search", "patient", ("controller.patience=null",), (1,)),
        Row("search", "sixteen-episodes", ("controller.first_episodes=null",), (1,)),
        Row("search", "population-128", ("controller.population=128",), (1,)),
        Row("search", "population-32", ("controller.population=32",), (1,)),
        Row("search", "sigma-0.03", ("controller.sigma=0.03",), (1,)),
        Row("search", "sigma-0.3", ("controller.sigma=0.3",), (1,)),
        Row("search", "diagonal", ("controller.diagonal=true",), (1,)),
    ]
    return table


def result(data: Path, row: Row, seed: int) -> dict[str, Any]:
    """What a finished run gave: score, likelihood, steps, and the curve of its search."""
    run = data / row.run(seed)
    score = read_json(run / "evaluate" / "scores.json")["agent"]
    search = read_json(run / "controller" / "manifest.json")
    memory = run / "rnn" / "manifest.json"
    return {
        "group": row.group,
        "name": row.name,
        "seed": seed,
        "overrides": list(row.overrides),
        "score": {key: score[key] for key in ("mean", "std", "interval")},
        "episodes": len(score["returns"]),
        "nll": read_json(memory)["summary"]["validation_nll"]["mdn_rnn"]
        if memory.exists()
        else None,
        "steps": search["summary"]["steps"],
        "generations": search["summary"]["generations"],
        "wall_s": search["wall_s"],
        "commit": search["commit"],
        "curve": list(curve(run / "controller")),
    }


def curve(folder: Path) -> Iterator[tuple[int, float, float]]:
    """Steps, seconds and the score of the search's mean on the selection seeds, as it went."""
    means = {
        step: value
        for step, name, value, _ in read_metrics(folder / "metrics.csv")
        if name == "selection/mean"
    }
    steps, seconds = 0, 0.0
    for record in JsonLines(folder / "generations.jsonl").read():
        steps, seconds = steps + record["steps"], seconds + record["seconds"]
        if (number := record["generation"] + 1) in means:
            yield steps, round(seconds, 1), round(means[number], 2)


def main() -> None:
    """Run what is missing, and write ``study.json`` of what is done."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("groups", nargs="*", help="tables to fill; all without")
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--list", action="store_true", help="print the commands instead")
    options = parser.parse_args()
    chosen = [row for row in rows() if row.group in options.groups or not options.groups]
    runs = [(row, seed) for row in chosen for seed in row.seeds]
    for row, seed in runs:
        for stage in row.stages:
            command = [*row.command(stage, seed), f"data={options.data}"]
            if options.list:
                print(shlex.join(command))
                continue
            done = subprocess.run([sys.executable, *command[1:]], check=False)
            if done.returncode:
                sys.exit(done.returncode)
    if not options.list:
        every = [(row, seed) for row in rows() for seed in row.seeds]
        finished = [
            result(options.data, row, seed)
            for row, seed in every
            if (options.data / row.run(seed) / "evaluate" / "scores.json").exists()
        ]
        write_json(options.data / "study.json", {**provenance(), "runs": finished})
        say(f"study: {len(finished)} of {len(every)} runs in {options.data / 'study.json'}")


if __name__ == "__main__":
    main()
