"""How many cores are counted, and that every use of them follows."""

import os
import subprocess
import sys

import pytest
from command import composed
from loky.backend import context as loky

from worldmodels.errors import ConfigError
from worldmodels.stages.runtime import Runtime
from worldmodels.system.cores import available_cores, cores_in_words

affinity = pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="Linux has affinities")


@pytest.fixture(autouse=True)
def _of_64(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine of 64 cores without limits."""
    monkeypatch.delenv("LOKY_MAX_CPU_COUNT", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(loky, "_cpu_count_affinity_set", lambda: None)
    monkeypatch.setattr(loky, "_cpu_count_cgroup", lambda machine: machine)


def test_without_limits_all_are_counted() -> None:
    assert available_cores() == 64
    assert cores_in_words() == "64 cores"


def test_a_containers_quota_counts_and_not_the_hosts_cores(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loky, "_cpu_count_cgroup", lambda machine: 3)
    assert available_cores() == 3
    assert cores_in_words() == "3 of 64 cores"
    runtime = Runtime(composed("device=cpu"))
    assert runtime.processes("cpu") == 3
    assert runtime.real(None).env_processes == 1
    alone = Runtime(composed("device=cpu", "workers.processes=0"))
    assert alone.real(None).env_processes == 3


def test_the_user_may_set_fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOKY_MAX_CPU_COUNT", "2")
    assert available_cores() == 2
    monkeypatch.setenv("LOKY_MAX_CPU_COUNT", "two")
    with pytest.raises(ConfigError, match="LOKY_MAX_CPU_COUNT=two: not a number"):
        available_cores()


@affinity
def test_an_affinity_counts() -> None:
    script = (
        "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
        "import sys; from worldmodels.system.cores import available_cores\n"
        "assert 'loky' not in sys.modules\n"
        "print(available_cores())"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["1"]
