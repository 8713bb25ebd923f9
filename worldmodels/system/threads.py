"""OpenMP settings with which threads share the cores with other processes.

PyTorch divides a loop among OpenMP threads, which synchronise at its end, thousands of times a
second. GNU's OpenMP lets a thread that waits there spin, which is fastest on idle cores. Beside one
busy process on two cores the thread that is waited for may have no core to run on, because a
spinning one holds it, and training becomes many times slower: ``make sharing`` measures it. Threads
that sleep soon keep their fair share. A spin of about 10 microseconds is kept: without any, the
small steps of an MDN-RNN took half as long again on quiet cores.

OpenMP reads its settings when it is loaded, so they are made when this package is imported, before
PyTorch is. Processes that this one starts inherit them.
"""

from __future__ import annotations

from collections.abc import MutableMapping

WAITING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
"""What decides how a thread waits, of OpenMP itself, of GNU's and of LLVM's."""

_SPINS = "1000"  # GNU's default is 300,000


def share_cores(environment: MutableMapping[str, str]) -> None:
    """Let OpenMP's threads sleep soon while they wait, unless the user has chosen otherwise.

    Args:
        environment: of this process, before PyTorch is loaded.
    """
    if not any(name in environment for name in WAITING):
        environment.update(OMP_WAIT_POLICY="PASSIVE", GOMP_SPINCOUNT=_SPINS)
