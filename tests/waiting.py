"""Waiting for what another process does, however slow or busy the machine is."""

import time
from collections.abc import Callable

HANG_SECONDS = 300.0
"""After so long something is taken to hang; what tests wait for takes seconds on a busy machine."""


def wait_for(condition: Callable[[], object]) -> None:
    """Return as soon as `condition` holds; fails when it never does."""
    deadline = time.monotonic() + HANG_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"waited {HANG_SECONDS:.0f} s in vain"
        time.sleep(0.02)
