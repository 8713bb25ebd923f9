"""How threads wait: OpenMP itself says what it was loaded with."""

import os
import re
import subprocess
import sys

import pytest

from worldmodels.system.threads import WAITING, share_cores


@pytest.mark.system
@pytest.mark.skipif(sys.platform != "linux", reason="LLVM's OpenMP words it otherwise")
@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        ({}, ("PASSIVE", "1000")),
        ({"OMP_WAIT_POLICY": "ACTIVE"}, ("ACTIVE", "30000000000")),
    ],
)
def test_threads_sleep_while_they_wait_unless_the_user_chose(
    chosen: dict[str, str], expected: tuple[str, str]
) -> None:
    kept = {name: value for name, value in os.environ.items() if name not in WAITING}
    done = subprocess.run(
        [sys.executable, "-c", "import worldmodels.models.vae"],
        env=kept | {"OMP_DISPLAY_ENV": "VERBOSE"} | chosen,
        capture_output=True,
        text=True,
        check=True,
    )
    said = dict(re.findall(r"(OMP_WAIT_POLICY|GOMP_SPINCOUNT) = '(\w+)'", done.stderr))
    assert (said["OMP_WAIT_POLICY"], said["GOMP_SPINCOUNT"]) == expected


@pytest.mark.parametrize("name", WAITING)
def test_what_the_user_chose_is_left_alone(name: str) -> None:
    environment = {name: "500"}
    share_cores(environment)
    assert environment == {name: "500"}
