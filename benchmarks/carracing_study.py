"""What each part of the laptop run is worth: ``make study``, many hours on two cores.

Each row is a variant of ``run=laptop``, which must be there, on a fourteenth of its steps: with its
V and M, or with an M of its own, and judged on the native engine on seeds 0 to 99. Runs that are
done are passed over, so that it can be stopped and started again.

    python benchmarks/carracing_study.py --list      # the commands, one a line
    python benchmarks/carracing_study.py ablation    # one group of them
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from worldmodels.artifacts import provenance, read_json, write_json
from worldmodels.reporting.curve import learning_curve
from worldmodels.tracking import say

BUDGET = 2_000_000
"""Steps of a search in the game: as many as the laptop preset's scout has."""
DREAM_BUDGET = 20_000_000
"""Steps of a search in the dream, which are about ten times as fast."""
SEEDS = (1, 2, 3)


@dataclass(frozen=True)
class Row:
    """A row of a table.

    Args:
        group: its table.
        name: of its runs, with the seed after it.
        what: the row's first cell.
        overrides: what differs from ``preset=laptop``.
        seeds: of its runs.
    """

    group: str
    name: str
    what: str
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
    z, one = "controller.features=z", (1,)
    dream = ("controller.world=dream", "controller.latent=sampled", "controller.dream_lanes=64")
    means = (dream[0], "rnn.latent=mean", dream[2], "controller.temperature=1.0")
    long, short = ("rnn.sequence_length=400", "rnn.batch_size=4"), ("rnn.sequence_length=25",)
    return [
        Row("ablation", "full", "V, M and a linear C"),
        Row("ablation", "vision", "V and a linear C", (z,)),
        Row(
            "ablation", "hidden", "V and a C with a layer of 40", (z, "controller.hidden_units=40")
        ),
        Row("ablation", "untrained", "V, an untrained M, a linear C", ("rnn.epochs=0",)),
        *(
            Row("dream", f"tau-{t}", f"at temperature {t}", (*dream, f"controller.temperature={t}"))
            for t in (0.1, 0.5, 1.0, 1.15, 1.3)
        ),
        Row("dream", "means", "at temperature 1.0, of means", means),
        Row("memory", "per-dimension", "a mixture for each dimension", ("rnn.mixtures=5",), one),
        Row("memory", "shared", "one mixture for all", ("rnn.shared_mixture=true",), one),
        Row("memory", "gaussian", "one Gaussian", ("rnn.mixtures=1",), one),
        Row("memory", "means", "learns means of latents", ("rnn.latent=mean",), one),
        Row("memory", "short", "windows of 25 steps", (*short, "rnn.batch_size=64"), one),
        Row("memory", "long", "windows of 400 steps", long, one),
        Row("memory", "sampled", "C sees draws of latents", ("controller.latent=sampled",), one),
        Row("memory", "after", "C sees the next hidden state", ("controller.hidden=after",), one),
        Row("search", "patient", "stuck lanes play on", ("controller.patience=null",), one),
        Row("search", "sixteen", "always 16 episodes", ("controller.first_episodes=null",), one),
        Row("search", "many", "128 candidates", ("controller.population=128",), one),
        Row("search", "few", "32 candidates", ("controller.population=32",), one),
        Row("search", "own", "CMA-ES's own step sizes", ("controller.final_sigma=null",), one),
        Row("search", "narrow", "a third of the first step size", ("controller.sigma=0.03",), one),
        Row("search", "wide", "three times the first step size", ("controller.sigma=0.3",), one),
        Row("search", "full", "a full covariance", ("controller.diagonal=false",), one),
        Row(
            "search", "raw", "along the features as they are", ("controller.components=null",), one
        ),
        Row("search", "all", "along all components", ("controller.components=288",), one),
        Row("search", "sixteen-components", "along 16", ("controller.components=16",), one),
    ]


def result(data: Path, row: Row, seed: int) -> dict[str, Any]:
    """What a finished run gave: score, likelihood, steps, and the curve of its search."""
    run = data / row.run(seed)
    score = read_json(run / "evaluate" / "scores.json")["agent"]
    search = read_json(run / "controller" / "manifest.json")
    memory = run / "rnn" / "manifest.json"
    return {
        "group": row.group,
        "name": row.name,
        "what": row.what,
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
        "curve": learning_curve(run / "controller"),
    }


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
