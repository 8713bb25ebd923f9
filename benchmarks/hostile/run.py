"""Kills, damaged files and hostile files, by the hundred: cases tried, and cases passed.

    make hostile                             # every topic, 15 minutes on slow cores
    make hostile topics="kills flips"        # some
    make hostile flags="seed=7 kills=200"    # the same cases again, or more kills
    make hostile flags=cases=100             # more random cases a topic

A case holds when the command ends with the right artifact, or with code 1 and one line that names
the file or key, and leaves no process and no temporary file behind. The exit code is 0 when every
case held. Each case that did not is printed with what happened.
"""

from __future__ import annotations

import argparse
import random
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import agents
import damage
import disk
import kills
import shards
import values
from harness import ALONE, SMALL, Bench, Case, run

from worldmodels.files.atomic import write_json
from worldmodels.runs.provenance import provenance
from worldmodels.system.cores import available_cores

TOPICS: dict[str, Callable[[Bench, Path], Iterator[Case]]] = {
    "kills": kills.kills,
    "workers": kills.workers,
    "flips": damage.flips,
    "foreign": shards.foreign,
    "agents": agents.agents,
    "values": values.values,
    "two": kills.two,
    "disk": disk.disk,
    "injection": values.injection,
}
BESIDE = 2
"""Cases at the same time."""


def main() -> int:
    """Try, print and write the table; the exit code says whether all held."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("words", nargs="*", help="topics, seed=N, kills=N, cases=N")
    parser.add_argument("--out", type=Path, default=Path("data/hostile.json"))
    options = parser.parse_args()
    numbers = {"seed": secrets.randbelow(2**31), "kills": 28, "cases": 30}
    topics = []
    for word in options.words:
        name, _, number = word.partition("=")
        if name in numbers and number.isdigit():
            numbers[name] = int(number)
        elif word in TOPICS:
            topics.append(word)
        else:
            known = f"{', '.join(TOPICS)}, {'=N, '.join(numbers)}=N"
            print(f"error: {word}: no such topic; choose from {known}", file=sys.stderr)
            return 1
    began = time.monotonic()
    print(f"seed={numbers['seed']}", flush=True)
    with tempfile.TemporaryDirectory(prefix="hostile-") as name:
        folder = Path(name)
        rows = []
        for row in try_all(folder, topics or list(TOPICS), **numbers):
            rows.append(row)
            result = {**provenance(), "cores": available_cores(), **numbers}
            result |= {"seconds": round(time.monotonic() - began), "topics": rows}
            write_json(options.out, result)  # after each topic, for the case that this one is ended
    for row in rows:
        print(f"{row['topic']:12}{row['tried']:6} tried{len(row['failed']):6} not held")
    print(f"wrote {options.out} after {time.monotonic() - began:,.0f} s")
    return 1 if any(row["failed"] for row in rows) else 0


def try_all(
    folder: Path, topics: list[str], seed: int, kills: int, cases: int
) -> Iterator[dict[str, Any]]:
    """Try the cases of `topics`; yields a row a topic."""
    smoke = folder / "smoke"
    smoke.mkdir()
    done = run(smoke, *SMALL, "stage=all", "run=smoke", ALONE)
    if done.code != 0:
        raise RuntimeError(done.errors)
    for topic in topics:
        # Its own numbers, so that a topic alone has the cases that it has among others.
        bench = Bench(smoke, random.Random(f"{seed} {topic}"), cases, kills)
        failed = []
        references = folder / f"references-{topic}"
        with ThreadPoolExecutor(BESIDE) as pool:
            every = list(TOPICS[topic](bench, references))
            places = [folder / f"{topic}-{number}" for number in range(len(every))]
            for case, wrong in zip(every, pool.map(attempt, every, places), strict=True):
                if wrong is not None:
                    failed.append(f"{case.name}: {wrong}")
                    print(f"{topic}: {case.name}: {wrong}".encode("unicode_escape").decode())
                    sys.stdout.flush()
        yield {"topic": topic, "tried": len(every), "failed": failed}


def attempt(case: Case, place: Path) -> str | None:
    """Try one case in a folder of its own."""
    place.mkdir()
    try:
        wrong = case.check(place)
        return None if wrong is None else wrong.replace(str(place.parent), "...")
    except Exception as error:
        return f"the case itself failed: {type(error).__name__}: {error}"
    finally:
        shutil.rmtree(place, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
