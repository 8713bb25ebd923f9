"""Kernels of OpenBLAS: OpenBLAS itself says which it was loaded with."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from worldmodels.system.blas import CPUINFO, SETTING, choose_kernels

AVX2 = "fpu sse2 avx fma avx2"
AVX512 = f"{AVX2} avx512f avx512dq avx512cd avx512bw avx512vl"


@pytest.mark.parametrize(
    ("flags", "chosen"),
    [
        (AVX512, "SkylakeX"),
        (f"{AVX512} avx512_bf16 amx_tile", "SkylakeX"),
        (f"{AVX2} avx512f", "Haswell"),
        (AVX2, "Haswell"),
        ("fpu sse2", None),
    ],
)
def test_kernels_depend_on_the_instructions_alone(
    flags: str, chosen: str | None, tmp_path: Path
) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    for model in ("7", "17"):
        cpuinfo.write_text(f"processor\t: 0\nmodel\t\t: {model}\nflags\t\t: {flags}\n\n")
        environment: dict[str, str] = {}
        choose_kernels(environment, cpuinfo)
        assert environment.get(SETTING) == chosen


def test_what_is_not_known_is_left_to_openblas(tmp_path: Path) -> None:
    environment: dict[str, str] = {}
    choose_kernels(environment, tmp_path / "missing")
    (tmp_path / "arm").write_text("processor\t: 0\nFeatures\t: fp asimd\n")
    choose_kernels(environment, tmp_path / "arm")
    assert environment == {}


def test_the_kernels_that_the_user_chose_stay(tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text(f"flags : {AVX512}\n")
    environment = {SETTING: "Zen"}
    choose_kernels(environment, tmp_path / "cpuinfo")
    assert environment == {SETTING: "Zen"}


@pytest.mark.skipif(not CPUINFO.exists(), reason="the instructions are in /proc/cpuinfo")
def test_openblas_is_loaded_with_these_kernels() -> None:
    expected: dict[str, str] = {}
    choose_kernels(expected)
    if not expected:
        pytest.skip("OpenBLAS chooses on this processor")
    code = (
        "import worldmodels, numpy, threadpoolctl\n"
        "print({p['architecture'] for p in threadpoolctl.threadpool_info()"
        " if p['internal_api'] == 'openblas'})"
    )
    kept = {name: value for name, value in os.environ.items() if name != SETTING}
    done = subprocess.run(
        [sys.executable, "-c", code], env=kept, capture_output=True, text=True, check=True
    )
    if done.stdout.strip() == "set()":
        pytest.skip("this NumPy has another library")
    assert done.stdout.strip() == str(set(expected.values()))
