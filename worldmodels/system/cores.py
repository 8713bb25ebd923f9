"""How many cores this process may use."""

from __future__ import annotations

import os

from worldmodels.errors import ConfigError


def available_cores() -> int:
    """The number of cores that this process may use, 1 or more.

    The smallest of what the machine has, the process's affinity, the CPU quota of its container
    (rounded up) and ``LOKY_MAX_CPU_COUNT``, where there is one.

    Raises:
        ConfigError: ``LOKY_MAX_CPU_COUNT`` is not a number.
    """
    limit = os.environ.get("LOKY_MAX_CPU_COUNT")
    if limit is not None and not limit.strip().isdecimal():
        raise ConfigError(f"LOKY_MAX_CPU_COUNT={limit}: not a number of cores; set one or unset it")
    # Imported here: most of what imports this module never counts, and --help must be quick.
    from loky import cpu_count

    return int(cpu_count())


def cores_in_words() -> str:
    """``"2 cores"``, or ``"2 of 64 cores"`` where this process may not use them all."""
    usable, all_cores = available_cores(), os.cpu_count()
    return f"{usable} cores" if usable == all_cores else f"{usable} of {all_cores} cores"
