"""What overlapping generations cost in the result: short searches with and without, by seed.

    python benchmarks/overlap.py              # minutes; writes data/overlap.json

Each search has the same number of generations, in the environment, on the models of the shipped
CarRacing agent, from a controller of zeros.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from worldmodels.files.atomic import JsonLines, read_json, write_json
from worldmodels.runs.provenance import provenance
from worldmodels.runs.tracking import say

SEARCH = {
    "base": "pretrained/carracing",
    "controller.latent": "mean",
    "controller.pca_components": "32",
    "controller.population": "16",
    "controller.episodes": "2",
    "controller.max_steps": "200",
    "controller.generations": "24",
    "controller.eval_interval": "12",
    "controller.eval_episodes": "16",
}
SEEDS = (1, 2, 3)


def search(data: Path, seed: int, overlap: bool, more: list[str]) -> dict[str, Any]:
    """Run one search; its scores on the selection seeds."""
    run = f"seed-{seed}-{'overlap' if overlap else 'wait'}"
    words = [f"{key}={value}" for key, value in SEARCH.items()]
    words += [f"run={run}", f"data={data}", f"seed={seed}", f"controller.overlap={overlap}", *more]
    command = [sys.executable, "-m", "worldmodels", "stage=controller", *words]
    subprocess.run(command, check=True)
    folder = data / run / "controller"
    manifest = read_json(folder / "manifest.json")
    selection = JsonLines(folder / "selection.jsonl").read()
    return {
        "seed": seed,
        "overlap": overlap,
        "steps": manifest["summary"]["steps"],
        "scores": {str(one["generation"] + 1): one["score"] for one in selection},
    }


def main() -> None:
    """Run the searches and write their scores."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("data/overlap.json"))
    parser.add_argument("more", nargs="*", help="overrides of every search")
    chosen = parser.parse_args()
    runs = []
    with tempfile.TemporaryDirectory() as data:
        for seed in SEEDS:
            for overlap in (False, True):
                runs.append(search(Path(data), seed, overlap, chosen.more))
                say(f"overlap: {runs[-1]}")
    write_json(chosen.out, {"search": SEARCH, "runs": runs, **provenance()})


if __name__ == "__main__":
    main()
