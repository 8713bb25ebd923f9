"""What a manifest says of the machine: OpenBLAS itself is asked."""

import json
import os
import platform
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

CODE = """
import json
from worldmodels.runs.provenance import provenance
print(json.dumps(provenance()["versions"]))"""


def told(**variables: str) -> dict[str, str]:
    done = subprocess.run(
        [sys.executable, "-c", CODE],
        env=os.environ | variables,
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, str] = json.loads(done.stdout)
    return found


@pytest.mark.skipif(platform.machine() != "x86_64", reason="kernels are named otherwise there")
@pytest.mark.parametrize("kernels", ["Haswell", "Nehalem"])
def test_the_kernels_of_openblas_are_in_the_manifest(kernels: str) -> None:
    built: Any = np.show_config(mode="dicts")
    if "openblas" not in built["Build Dependencies"]["blas"]["name"]:
        pytest.skip("this NumPy has another library")
    assert told(OPENBLAS_CORETYPE=kernels)["OpenBLAS"].endswith(f" {kernels}")
