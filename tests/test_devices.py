"""Which device the models run on, and what depends on it: Metal as if it were here."""

import os
import platform

import pytest
import torch
from command import composed
from lightning_fabric.accelerators.mps import MPSAccelerator

from worldmodels.envs.engines import simulation_device
from worldmodels.errors import ConfigError
from worldmodels.stages.runtime import Runtime
from worldmodels.system.devices import choose_device, has_bfloat16


@pytest.fixture
def metal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(platform, "processor", lambda: "arm")
    monkeypatch.setattr(MPSAccelerator, "is_available", lambda: True)


def test_a_device_that_is_not_here_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for name in ("cuda", "mps"):
        with pytest.raises(ConfigError, match=rf"^device={name}: .*; use device=auto or"):
            choose_device(name)
    assert choose_device("auto") == torch.device("cpu")


@pytest.mark.usefixtures("metal")
def test_metal_is_used_where_it_is_asked_for_by_name() -> None:
    assert choose_device("mps") == torch.device("mps")
    assert choose_device("auto") == torch.device("cpu")


@pytest.mark.usefixtures("metal")
def test_metal_is_one_process_in_float32_beside_a_simulator_on_the_cpu(
    caplog: pytest.LogCaptureFixture,
) -> None:
    runtime = Runtime(composed("device=mps"))
    assert runtime.processes == 0
    assert not runtime.bfloat16
    assert not has_bfloat16(torch.device("mps"))
    assert runtime.fabric().device.type == "mps"
    assert simulation_device(str(runtime.device)) == "cpu"
    assert not caplog.messages  # CUDA's extra is no advice for a Mac
    assert Runtime(composed("device=auto")).device.type == "cpu"


def test_a_gpu_computes_with_deterministic_algorithms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    try:
        assert choose_device("auto") == torch.device("cuda")
        assert torch.are_deterministic_algorithms_enabled()
        assert torch.is_deterministic_algorithms_warn_only_enabled()
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    finally:
        torch.use_deterministic_algorithms(False)
