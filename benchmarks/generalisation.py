"""CarRacing agents in conditions that they were not trained in: minutes on two cores.

    python benchmarks/generalisation.py pretrained/carracing data/quick/controller/agent

Every condition has the same tracks, on the native engine, and none of them was seen in training.
Writes ``generalisation.json``.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import worldmodels
from worldmodels.files.atomic import write_json
from worldmodels.runs.provenance import provenance
from worldmodels.runs.tracking import say
from worldmodels.system.cores import available_cores


class Condition(NamedTuple):
    """How an environment differs from that of the training.

    Args:
        name: of its row.
        settings: keys ``env.*``.
    """

    name: str
    settings: dict[str, Any]


CONDITIONS = (
    Condition("as trained", {}),
    Condition("new colours in each episode", {"kwargs": {"domain_randomize": True}}),
    Condition("sticky actions, 0.25", {"sticky_actions": 0.25}),
    Condition("sticky actions, 0.5", {"sticky_actions": 0.5}),
    Condition("2 steps an action", {"frame_skip": 2}),
    Condition("3 steps an action", {"frame_skip": 3}),
    Condition("4 steps an action", {"frame_skip": 4}),
)
"""An episode with a frame skip is as long, in steps of the simulator, as one without."""


def measure(agent: str, episodes: int, first_seed: int) -> dict[str, Any]:
    """The scores of an agent, a row for each condition."""
    rows = []
    for condition in CONDITIONS:
        found = worldmodels.evaluate(
            agent, episodes, first_seed, "native", available_cores(), **condition.settings
        )
        say(f"{agent}: {condition.name}: {found.mean:.1f} ± {found.std:.1f}")
        rows.append(
            {
                "condition": condition.name,
                "mean": found.mean,
                "std": found.std,
                "interval": list(found.interval),
                "failed": float(np.mean(found.returns < 500)),
            }
        )
    return {"agent": agent, "rows": rows}


def main() -> None:
    """Measure each agent, print and write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("agents", nargs="+", help="as worldmodels.load_agent takes them")
    parser.add_argument("--episodes", type=int, default=100, help="of each agent and condition")
    parser.add_argument("--first-seed", type=int, default=20_000, help="of the tracks")
    parser.add_argument("--out", type=Path, default=Path("data/generalisation.json"))
    options = parser.parse_args()
    figures = [measure(agent, options.episodes, options.first_seed) for agent in options.agents]
    record = {"episodes": options.episodes, "first_seed": options.first_seed, "figures": figures}
    write_json(options.out, {**provenance(), **record})
    say(f"wrote {options.out}; python docs/render.py {options.out} puts it into the documentation")


if __name__ == "__main__":
    main()
