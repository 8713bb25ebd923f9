"""``stage=doctor``: what it tells, what it misses, and that it leaves nothing behind."""

import re
import shutil
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch
from command import CONF, composed, error_line, run
from loky.backend import context as loky
from shell import Commands

from worldmodels.stages import diagnosis
from worldmodels.stages.diagnosis import DEPENDENCIES, OPTIONAL, Row, diagnose

ROOT = CONF.parent


def rows(*overrides: str) -> dict[str, Row]:
    return {row.name: row for row in diagnose(composed(*overrides))}


def problems(*overrides: str) -> list[str]:
    return [row.problem for row in diagnose(composed(*overrides)) if row.problem]


def test_it_tells_what_a_bug_report_needs_and_leaves_nothing(tmp_path: Path) -> None:
    done = run(tmp_path / "data", "stage=doctor", "base=nowhere")
    assert done.returncode == 0, done.stderr
    told = done.stdout
    for what in ("worldmodels-gym", "commit", "torch ", "cores", "memory", "bfloat16", "Xvfb"):
        assert what in told
    assert f"{tmp_path / 'data'}canbemade" in "".join(told.split())  # wherever it was wrapped
    assert told.endswith("doctor: nothing is missing for env=carracing\n")
    assert told.isascii()
    assert not list(tmp_path.iterdir())


def test_all_that_is_missing_is_one_error_line() -> None:
    if torch.backends.mps.is_available():
        pytest.skip("there is Metal here")
    line = error_line(run(Path("/dev/null"), "stage=doctor", "device=mps"))
    assert line.startswith("error: 2 things are missing: (1) device=mps: ")
    assert "(2) data=/dev/null: cannot be written (Not a directory); choose another" in line


def test_nothing_is_missing_here_and_a_probe_that_fails_costs_one_row(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail() -> None:
        raise OSError("no such device")

    monkeypatch.setattr(psutil, "virtual_memory", fail)
    found = rows()
    assert not problems()
    assert found["machine"].value == "unknown (OSError: no such device)"
    assert found["device"].status == "ok"


def test_a_game_that_is_not_installed_is_named_with_its_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "vizdoom", None)  # as if it were not installed
    (problem,) = problems("env=takecover")
    assert problem.startswith("env=takecover")
    assert problem.endswith("vizdoom is not installed; pip install 'worldmodels-gym[doom]'")
    assert not problems("env=carracing")


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["env.needs_display=true"], "display=auto: Xvfb is not installed"),
        (["display=xvfb"], "display=xvfb: Xvfb is not installed"),
        (["display=forward"], "display=forward: $DISPLAY is not set"),
        (["env.needs_display=true", "display=none"], None),
    ],
)
def test_a_display_is_missed_where_one_is_needed(
    monkeypatch: pytest.MonkeyPatch, overrides: list[str], said: str | None
) -> None:
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    found = rows(*overrides)["display"]
    assert found.value == "no DISPLAY, Xvfb not installed"
    assert (found.problem or "").startswith(said or "")
    assert found.status == ("missing" if said else "-")


def test_a_gpu_is_told_with_its_driver(monkeypatch: pytest.MonkeyPatch, commands: Commands) -> None:
    (commands.bin / "nvidia-smi").write_text("#!/bin/sh\necho 580.95.05\n")
    (commands.bin / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", commands.env["PATH"])
    card: Any = SimpleNamespace(name="H100", total_memory=80e9)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda number: card)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_: True)
    found = rows("device=cuda")
    assert found["GPU 0"].value == "H100, 80.0 GB, driver 580.95.05"
    assert found["device"].status == found["bfloat16"].status == "ok"


def test_limits_of_a_container_are_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(loky, "_cpu_count_cgroup", lambda machine: 1)
    monkeypatch.setattr("os.cpu_count", lambda: 64)
    monkeypatch.setattr("os.sched_getaffinity", lambda process: set(range(8)), raising=False)
    (tmp_path / "memory.max").write_text("2000000000\n")
    monkeypatch.setattr(diagnosis, "CGROUP", tmp_path)
    found = rows()
    expected = "1 of 64 cores (machine 64, affinity 8, container's quota 1)"
    assert found["cores"].value == expected
    assert found["memory"].value.endswith("this container may use 2.0 GB")


def test_its_lists_are_the_packages_of_this_distribution() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

    def name(requirement: str) -> str:
        return re.split(r"[\[<>]", requirement)[0]

    wanted = {name(requirement) for requirement in project["dependencies"]}
    assert set(DEPENDENCIES) == wanted | {"Box2D"}  # which gymnasium[box2d] brings
    optional = project["optional-dependencies"]
    assert {
        extra: tuple(name(one) for one in packages if name(one) not in DEPENDENCIES)
        for extra, packages in optional.items()
        if extra not in ("dev", "docs")  # no run needs these
    } == OPTIONAL


@pytest.mark.system
@pytest.mark.usefixtures("bare")
def test_it_works_without_what_linux_alone_has(tmp_path: Path) -> None:
    done = run(tmp_path, "stage=doctor")
    assert done.returncode == 0, done.stderr
    assert "unknown (" not in done.stdout
    assert sys.executable in done.stdout
