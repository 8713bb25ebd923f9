"""What ``stage=plan`` predicts, beside what the stages then take.

    python benchmarks/plan_accuracy.py preset=quick                # plan, then run
    python benchmarks/plan_accuracy.py preset=quick --no-plan      # with the plan that is there
    python benchmarks/plan_accuracy.py preset=quick --no-run       # with the run that is there

Words with ``=`` are those of the program's command line; the run is a new one. Times are those of
the manifests; finished stages are compared. The table goes to ``data/plan-<run>.json``, which
``docs/render.py`` takes over.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path
from typing import Any

from rich.table import Table

from worldmodels.files.atomic import read_json, write_json
from worldmodels.runs.costs import duration, in_words, size
from worldmodels.runs.tracking import console


def command(*words: str) -> None:
    """Run the program; raises `SystemExit` if it fails."""
    done = subprocess.run([sys.executable, "-m", "worldmodels", *words], check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(words)}: exit code {done.returncode}")


def compare(folder: Path, words: list[str]) -> dict[str, Any]:
    """The plan of a run beside its manifests.

    Args:
        folder: of the run, with ``plan.json``.
        words: of the command line.
    """
    plan = read_json(folder / "plan.json")
    stages = []
    for name, planned in plan["stages"].items():
        path = folder / name / "manifest.json"
        manifest: dict[str, Any] = read_json(path) if path.exists() else {"state": "missing"}
        if manifest["state"] != "complete":  # of the start there is none
            continue
        used = manifest["resources"]
        actual = {
            "wall_s": manifest["wall_s"],
            "peak_bytes": used["peak_bytes"],
            "disk_bytes": used["disk_bytes"],
        }
        kept = {key: planned[key] for key in ("wall_s", "peak_bytes", "disk_bytes", "at_most")}
        line = f"{name}: {in_words(manifest)}"
        stages.append({"stage": name, "planned": kept, "actual": actual, "line": line})
    made = {key: plan[key] for key in ("machine", "commit", "cores", "workers", "calibration_s")}
    return {**made, "words": words, "stages": stages}


def table(record: dict[str, Any]) -> Table:
    """The comparison for a terminal."""
    shown = Table("stage", "planned", "took", "ratio", "memory", "was", "disk", "was")
    for row in record["stages"]:
        planned, actual = row["planned"], row["actual"]
        memory = [one["peak_bytes"]["process"] for one in (planned, actual)]
        disk = [one["disk_bytes"] for one in (planned, actual)]
        shown.add_row(
            row["stage"],
            "≤ " * planned["at_most"] + duration(planned["wall_s"]),
            duration(actual["wall_s"]),
            f"{planned['wall_s'] / actual['wall_s']:.2f}",
            *map(size, (*memory, *disk)),
        )
    both = [sum(row[key]["wall_s"] for row in record["stages"]) for key in ("planned", "actual")]
    shown.add_row("all", *map(duration, both), f"{both[0] / both[1]:.2f}")
    return shown


def main() -> None:
    """Plan, run, compare."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("words", nargs="*", help="of the program's command line")
    parser.add_argument("--run", default="planned", help="name of the run")
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--no-plan", action="store_true", help="it is there")
    parser.add_argument("--no-run", action="store_true", help="it is there")
    options = parser.parse_args()
    words = [*options.words, f"run={options.run}", f"data={options.data}"]
    if not options.no_plan:
        command("stage=plan", *words)
    if not options.no_run:
        command("stage=all", *words)
    record = compare(options.data / options.run, options.words)
    path = options.data / f"plan-{options.run}.json"
    write_json(path, record)
    console.print(table(record))
    console.print(f"wrote {path}")


if __name__ == "__main__":
    main()
