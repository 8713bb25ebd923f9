"""CarRacing agents in conditions that they were not trained in: minutes an agent on two cores.

    python benchmarks/generalisation.py laptop=pretrained/carracing
    python benchmarks/generalisation.py quick=data/quick{,-2,-3}/controller/agent

An argument is the name of a column, and an agent. A name that stands before several agents, as bash
writes it in the second command, is of agents of several training seeds. Every condition has the
same tracks, on the native engine, and none of them was seen in training. Writes
``generalisation.json``; columns of other names that it has stay there.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import worldmodels
from worldmodels.files.atomic import read_json, write_json
from worldmodels.runs.provenance import provenance
from worldmodels.runs.tracking import say
from worldmodels.system.cores import available_cores


class Condition(NamedTuple):
    """How an environment differs from Gymnasium's, with the agent's steps per action.

    Args:
        name: of its row.
        settings: keys ``env.*``.
    """

    name: str
    settings: dict[str, Any]


CONDITIONS = (
    Condition("as it is", {}),
    Condition("new colours in each episode", {"kwargs": {"domain_randomize": True}}),
    Condition("sticky actions, 0.25", {"sticky_actions": 0.25}),
    Condition("sticky actions, 0.5", {"sticky_actions": 0.5}),
    Condition("1 step per action", {"frame_skip": 1}),
    Condition("2 steps per action", {"frame_skip": 2}),
    Condition("3 steps per action", {"frame_skip": 3}),
    Condition("4 steps per action", {"frame_skip": 4}),
)
"""An episode with a frame skip is as long, in steps of the simulator, as one without, but for those
of the last action."""


def measure(name: str, agent: str, episodes: int, first_seed: int) -> dict[str, Any]:
    """The scores of an agent of the column `name`, a row for each condition."""
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
    return {"name": name, "agent": agent, "rows": rows, "commit": provenance()["commit"]}


def earlier(path: Path, tracks: dict[str, int], names: set[str]) -> list[dict[str, Any]]:
    """The figures on the same tracks that a file has, other than those of the columns `names`, and
    of columns in other conditions."""
    record = read_json(path) if path.exists() else {}
    if {key: record.get(key) for key in tracks} != tracks:
        return []
    conditions = {condition.name for condition in CONDITIONS}
    return [
        figure
        for figure in record["figures"]
        if figure["name"] not in names
        and {row["condition"] for row in figure["rows"]} == conditions
    ]


def named(argument: str) -> tuple[str, str]:
    """The name and the agent of an argument."""
    name, separator, agent = argument.partition("=")
    if not (name and separator and agent):
        raise argparse.ArgumentTypeError(f"{argument}: give the name of a column and an agent")
    return name, agent


def main() -> None:
    """Measure each agent, print and write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "agents",
        nargs="+",
        type=named,
        metavar="NAME=AGENT",
        help="an agent as worldmodels.load_agent takes it, and its column",
    )
    parser.add_argument("--episodes", type=int, default=100, help="of each agent and condition")
    parser.add_argument("--first-seed", type=int, default=20_000, help="of the tracks")
    parser.add_argument("--out", type=Path, default=Path("data/generalisation.json"))
    options = parser.parse_args()
    figures = [
        measure(name, agent, options.episodes, options.first_seed) for name, agent in options.agents
    ]
    tracks = {"episodes": options.episodes, "first_seed": options.first_seed}
    figures = [*earlier(options.out, tracks, {name for name, _ in options.agents}), *figures]
    write_json(options.out, {**provenance(), **tracks, "figures": figures})
    say(f"wrote {options.out}; python docs/render.py {options.out} puts it into the documentation")


if __name__ == "__main__":
    main()
