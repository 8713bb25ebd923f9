"""What a manifest says of the machine: OpenBLAS itself is asked."""

import json
import os
import platform
import subprocess
import sys

import numpy as np
import pytest
from threadpoolctl import threadpool_info

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
    assert np.zeros(1).size == 1, "NumPy is loaded"
    if not [part for part in threadpool_info() if part["internal_api"] == "openblas"]:
        pytest.skip("this NumPy has another library")
    assert told(OPENBLAS_CORETYPE=kernels)["OpenBLAS"].endswith(f" {kernels}")
