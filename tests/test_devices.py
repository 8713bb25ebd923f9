"""Which device the models run on, and what depends on it: Metal as if it were here."""

import os
import platform
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from command import composed
from lightning_fabric.accelerators.mps import MPSAccelerator

from worldmodels.config import limits
from worldmodels.envs.carracing import cuda
from worldmodels.envs.engines import EnvSpec, prepare, simulation_device
from worldmodels.errors import ConfigError
from worldmodels.models.features import FeatureSpec
from worldmodels.runs.artifacts import Run
from worldmodels.stages.context import Context
from worldmodels.stages.runtime import Runtime
from worldmodels.system.cores import available_cores
from worldmodels.system.devices import choose_device, has_bfloat16
from worldmodels.worlds.members import SamplingRule
from worldmodels.worlds.specs import DreamWorldSpec, NoveltyWorldSpec


@pytest.fixture
def metal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(platform, "processor", lambda: "arm")
    monkeypatch.setattr(MPSAccelerator, "is_available", lambda: True)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_: True)
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", True)
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    yield
    torch.use_deterministic_algorithms(False)


def test_a_device_that_is_not_here_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for name in ("cuda", "mps"):
        with pytest.raises(ConfigError, match=rf"^device={name}: .*; use device=auto or"):
            choose_device(name)
        with pytest.raises(ConfigError, match=rf"^workers.device={name}: .*workers.device=auto or"):
            choose_device(name, "workers.device")
    assert choose_device("auto") == torch.device("cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(ConfigError, match=r"^device=cuda:2: torch sees 2 GPUs here; use"):
        choose_device("cuda:2")


@pytest.mark.usefixtures("metal")
def test_metal_is_used_where_it_is_asked_for_by_name() -> None:
    assert choose_device("mps") == torch.device("mps")
    assert choose_device("auto") == torch.device("cpu")


@pytest.mark.usefixtures("metal")
def test_metal_is_one_process_in_float32_beside_a_simulator_on_the_cpu(
    caplog: pytest.LogCaptureFixture,
) -> None:
    runtime = Runtime(composed("device=mps"))
    assert runtime.processes("mps") == 0
    assert runtime.processes(str(runtime.real_device)) == available_cores()
    assert not runtime.bfloat16
    assert not has_bfloat16(torch.device("mps"))
    assert runtime.fabric().device.type == "mps"
    assert simulation_device(EnvSpec(), str(runtime.device)) == "cpu"
    assert not caplog.messages  # CUDA's extra is no advice for a Mac
    assert Runtime(composed("device=auto")).device.type == "cpu"


def test_beside_a_gpu_the_environment_is_on_all_cores_and_the_learned_model_on_the_gpu(
    gpu: None,
) -> None:
    runtime = Runtime(composed("device=auto", "env.engine=gymnasium"))
    real, dream = runtime.real(None), _learned_model(runtime)
    assert (real.device, dream.device) == ("cpu", "cuda")
    assert real.bfloat16 == has_bfloat16(torch.device("cpu"))
    assert dream.bfloat16
    assert NoveltyWorldSpec(dream).device == "cuda"
    assert runtime.processes(real.device) == available_cores()
    assert runtime.processes(dream.device) == 0


def test_the_environment_may_be_on_the_gpu(gpu: None) -> None:
    words = "device=cpu", "workers.device=cuda", "env.engine=gymnasium"
    runtime = Runtime(composed(*words))
    real = runtime.real(None)
    assert (real.device, _learned_model(runtime).device) == ("cuda", "cpu")
    assert real.env_processes == available_cores()
    assert runtime.processes(real.device) == 0


def test_workers_of_a_cluster_have_no_gpu() -> None:
    with pytest.raises(ConfigError, match=r"^workers.device=cuda: .*choose cpu, or workers=local"):
        limits.check(composed("workers=ray", "workers.device=cuda"))


def _learned_model(runtime: Runtime) -> DreamWorldSpec:
    return runtime.dream(Path("rnn.safetensors"), FeatureSpec(), 1.0, SamplingRule(), None)


@pytest.mark.parametrize("other", [EnvSpec(crop_rows=None), EnvSpec(size=96)])
def test_frames_that_the_simulator_does_not_draw_itself_need_none_on_a_gpu(
    other: EnvSpec, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(cuda, "usable", lambda: False)
    assert simulation_device(other, "cuda") == "cpu"
    assert not caplog.messages  # the extra would change nothing
    monkeypatch.setattr(cuda, "usable", lambda: True)
    assert simulation_device(EnvSpec(), "cuda") == "cuda"
    assert simulation_device(other, "cuda") == "cpu"
    prepare(other, "cuda")  # compiles nothing for CUDA, an error without a GPU


def operations_of(call: Callable[[], object]) -> set[str]:
    """The names of torch's operations in a call."""
    with torch.profiler.profile() as profile:
        call()
    return {event.key for event in profile.key_averages() if event.key.startswith("aten::")}


def test_a_gpu_computes_with_deterministic_algorithms(gpu: None) -> None:
    assert choose_device("auto") == torch.device("cuda")
    assert torch.are_deterministic_algorithms_enabled()
    assert torch.is_deterministic_algorithms_warn_only_enabled()
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    assert operations_of(lambda: torch.empty(3)) == {"aten::empty"}  # which are not filled


def test_a_device_is_named_with_its_arithmetic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H200")
    device = torch.device("cuda")
    for has, auto in ((True, "bfloat16"), (False, "float32")):
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda has=has, **_: has)
        assert Runtime(composed()).in_words(device) == f"NVIDIA H200, {auto}"
    wanted = Runtime(composed("trainer.precision=bfloat16"))
    assert wanted.in_words(device) == "NVIDIA H200, bfloat16"
    assert wanted.in_words(torch.device("cpu")) == "cpu, bfloat16"


@pytest.mark.parametrize(
    ("stage", "words", "named"),
    [
        ("rollouts", (), "cpu"),
        ("rnn", (), "NVIDIA H200"),
        ("controller", (), "cpu"),
        ("controller", ("controller.world=dream",), "NVIDIA H200"),
        ("controller", ("controller.world=dream", "controller.optimizer=actor_critic"), "NVIDIA"),
        ("evaluate", ("workers.device=cuda",), "NVIDIA H200"),
    ],
)
def test_a_manifest_names_the_device_of_its_stage(
    gpu: None,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    stage: str,
    words: tuple[str, ...],
    named: str,
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H200")
    context = Context(composed(*words), Run(tmp_path / "run"))
    with context.begin(stage, {}, ()) as folder:
        assert folder.record["device"].startswith(named)
