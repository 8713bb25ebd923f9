"""Ablations and other variants of a run: ``make study``, many hours on two cores.

Each row is a variant of the run ``laptop`` or ``takecover``, which has to exist. It uses the VAE
and the MDN-RNN of that run, or trains an MDN-RNN of its own, and is evaluated on seeds 0 to 99.
Rows with the MDN-RNN of the run, searched along principal components that its agent stores, need
only that agent. The tables ``action_bursts`` and ``rnn_variants`` need no run: their rows, or the
first ones, use the VAE of the shipped agent. Other rows continue from one of these, as ``base`` in
``study_rows.py`` says. Finished runs are skipped, so that the script can be stopped and started
again.

    python benchmarks/study.py carracing                # a study
    python benchmarks/study.py carracing ablation       # one table of it
    python benchmarks/study.py carracing search/full    # one row of it
    python benchmarks/study.py takecover rnn_epochs --list   # the commands, one per line
    python benchmarks/study.py takecover temperatures --base pretrained/takecover
    python benchmarks/study.py carracing rnn_variants search
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

from commands import returns_of, rows_named, run_all
from study_rows import SEEDS, STUDIES, Row, Study

from worldmodels.files.atomic import read_json, write_json
from worldmodels.reporting.progress import search_curve
from worldmodels.reporting.scores import AGENT_IN_DREAM
from worldmodels.runs.provenance import provenance
from worldmodels.runs.tracking import say


def result(data: Path, study: Study, row: Row, seed: int) -> dict[str, Any]:
    """The results of a finished run: scores, likelihood, steps, and the curve of its search."""
    scores = read_json(data / study.run(row, seed) / "evaluate" / "scores.json")
    run = data / study.run(row, seed)
    search = read_json(run / "controller" / "manifest.json")
    bases = (run, data / (row.base or study.base))
    manifests = (folder / "rnn" / "manifest.json" for folder in bases)
    dynamics = next((path for path in manifests if path.exists()), None)
    return {
        "table": row.table,
        "name": row.name,
        "what": row.what,
        "seed": seed,
        "overrides": list(row.overrides),
        "returns": returns_of(scores, {"game": "agent", "dream": AGENT_IN_DREAM}),
        "nll": read_json(dynamics)["summary"]["validation_nll"]["mdn_rnn"] if dynamics else None,
        "world": search["summary"]["world"],
        "selection": search["summary"]["selection_mean"],
        "steps": search["summary"]["steps"],
        "generations": search["summary"]["generations"],
        "wall_s": search["wall_s"],
        "commit": search["commit"],
        "inputs": search["inputs"],
        "curve": search_curve(run / "controller"),
    }


def main() -> None:
    """Run the missing runs, and after each one write ``study-<name>.json``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("study", choices=STUDIES)
    parser.add_argument("tables", nargs="*", help="tables or table/row to fill; all without")
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--base", help="an agent's folder, instead of the run that made it")
    parser.add_argument("--list", action="store_true", help="print the commands instead")
    options = parser.parse_args()
    study = STUDIES[options.study]()
    study = replace(study, base=options.base or study.base)
    # A table has all its rows, of one seed, before the next seed begins.
    every = [(row, seed) for seed in SEEDS for row in study.rows if seed in row.seeds]
    chosen = rows_named(options.tables, study.rows, parser)
    for row, seed in every:
        if row not in chosen:
            continue
        commands = (
            [*study.command(row, stage, seed), f"data={options.data}"] for stage in row.stages
        )
        run_all(commands, options.list)
        if not options.list:
            keep(options.data, options.study, study, every)


def keep(data: Path, name: str, study: Study, every: list[tuple[Row, int]]) -> None:
    """Write the results of the finished runs."""
    finished = [
        result(data, study, row, seed)
        for row, seed in every
        if (data / study.run(row, seed) / "evaluate" / "scores.json").exists()
    ]
    path = data / f"study-{name}.json"
    write_json(path, {**provenance(), "runs": finished})
    say(f"study: {len(finished)} of {len(every)} runs in {path}")


if __name__ == "__main__":
    main()
