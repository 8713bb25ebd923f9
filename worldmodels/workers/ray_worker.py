"""The worker of a `RayPool`: an actor, a process of a Ray cluster that does one job at a time.

Jobs are done in a thread of the actor, and two more answer the pool meanwhile. Nothing that takes
long to import is imported here: a worker sets its environment variables first.
"""

from __future__ import annotations

import contextlib
import os
import platform
import sys
import threading
import time
from importlib import metadata
from typing import Any

import ray

from worldmodels.errors import DISTRIBUTION
from worldmodels.workers.jobs import ONE_THREAD, line_of
from worldmodels.workers.transfer import Misplaced, done_elsewhere

ANSWERS = "answers"
"""The concurrency group of the methods that answer while a job is done."""


def versions() -> dict[str, str]:
    """Versions that all machines have to share: results would differ, or messages be misread."""
    found = {"Python": platform.python_version()}
    for name in (DISTRIBUTION, "torch", "numpy"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


class _Abandoned(BaseException):
    """The job is of no use any more."""


class RayWorker:
    """A process that builds a tool and does jobs with it."""

    def __init__(self) -> None:
        os.environ.update(ONE_THREAD)
        self._tool: Any = None
        self._steps, self._counted = 0, threading.Lock()
        self._job, self._unwanted = -1, -1

    def build(self, box: list[Any], expected: dict[str, str], search: list[str]) -> tuple[str, str]:
        """Build the tool.

        Args:
            box: references to the setup and to the files that it reads. In a list, Ray does not
                resolve them before this method is called: what unpickles them imports libraries
                that read the environment variables.
            expected: `versions` of the machine of the pool.
            search: where Python finds modules there, such as that of an environment in the working
                directory; folders that are here too are searched last.

        Returns:
            ("ready", "") or ("error", a line about it).
        """
        here = versions()
        unlike = {name: here.get(name) for name in expected if here.get(name) != expected[name]}
        if unlike:
            found = ", ".join(f"{name} {version}" for name, version in unlike.items())
            wanted = ", ".join(f"{name} {expected[name]}" for name in unlike)
            return "error", (
                f"workers.address: {platform.node()} has {found}, this machine {wanted}; install"
                " the same versions on all machines"
            )
        sys.path += [folder for folder in search if folder not in sys.path]
        try:
            setup, *trees = ray.get(box)
            self._tool, _ = done_elsewhere(setup, trees, lambda placed: placed.build())
        except Misplaced as wrong:
            return "error", wrong.corrected(line_of(wrong.error))
        except Exception as error:
            return "error", line_of(error)
        return "ready", ""

    def do(self, number: int, job: Any, box: list[Any]) -> tuple[str, Any, dict[Any, bytes]]:
        """Do a job.

        Args:
            number: of the call, for `abandon`.
            job: to be done.
            box: references to the files that it reads.

        Returns:
            ("done", result, files that it wrote), ("error", a line, none) or ("abandoned", ...).
        """
        self._job = number
        try:
            result, outputs = done_elsewhere(
                job, ray.get(box), lambda placed: placed(self._tool, self._beat)
            )
        except _Abandoned:
            return "abandoned", None, {}
        except Misplaced as wrong:
            return "error", wrong.corrected(line_of(wrong.error)), {}
        except Exception as error:
            return "error", line_of(error), {}
        return "done", result, outputs

    @ray.method(concurrency_group=ANSWERS)
    def steps(self, wait: float) -> tuple[str, int, float]:
        """How far it is.

        Args:
            wait: seconds after which it returns.

        Returns:
            the machine (its number in the cluster), the steps done since the last call, and the
            seconds that this process has computed since it started.
        """
        time.sleep(wait)
        with self._counted:
            steps, self._steps = self._steps, 0
        return ray.get_runtime_context().get_node_id(), steps, time.process_time()

    @ray.method(concurrency_group=ANSWERS)
    def abandon(self, number: int) -> None:
        """End a job at its next step: another worker has done it, or the pool closes."""
        self._unwanted = number

    def close(self) -> None:
        """Close the tool."""
        tool, self._tool = self._tool, None
        if hasattr(tool, "close"):
            tool.close()

    def _beat(self, steps: int) -> None:
        if self._unwanted == self._job:
            raise _Abandoned
        with self._counted:
            self._steps += steps
