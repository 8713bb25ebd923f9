"""OpenBLAS kernels chosen by instruction set, so that processors with equal instructions agree.

NumPy and SciPy multiply matrices with OpenBLAS, which chooses kernels by the processor's model:
0.3.31 has SkylakeX's for AMD's Zen 4 and Haswell's for Zen 5, although both have AVX-512. Kernels
round differently. With ``preset=quick``, the rounding of the principal components changed
candidates by a bit of float32, and from the second generation on the search was another one.

OpenBLAS reads its setting when it is loaded, so it is made when this package is imported, before
NumPy is. Processes that this one starts inherit it. It has no effect on other libraries, such as
MKL, nor where NumPy is imported first.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")
"""Where Linux lists the instructions of the processors."""
SETTING = "OPENBLAS_CORETYPE"
_KERNELS = {
    "SkylakeX": {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"},
    "Haswell": {"avx2", "fma"},
}
"""OpenBLAS's name for the kernels of an instruction set, and the flags of that; best first."""


def choose_kernels(environment: MutableMapping[str, str], cpuinfo: Path = CPUINFO) -> None:
    """Let OpenBLAS use the kernels of the instruction set, unless the user has chosen otherwise.

    Where the instructions are not known or are others, OpenBLAS chooses.

    Args:
        environment: of this process, before NumPy is loaded.
        cpuinfo: the file that lists the instructions.
    """
    if SETTING in environment:
        return
    flags = _flags(cpuinfo)
    for name, needed in _KERNELS.items():
        if needed <= flags:
            environment[SETTING] = name
            return


def _flags(cpuinfo: Path) -> set[str]:
    """The instructions of the first processor; all of a machine have the same."""
    try:
        with cpuinfo.open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                name, _, value = line.partition(":")
                if name.strip() == "flags":
                    return set(value.split())
    except OSError:
        pass
    return set()
