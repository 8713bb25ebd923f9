"""What this machine has and what a configuration needs of it, as rows of a table.

A probe reports what is absent and does not fail for it; what it imports, it imports itself, so that
a broken package costs one row.
"""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

import psutil

from worldmodels import extras
from worldmodels.config.choices import Stage
from worldmodels.config.schema import Config
from worldmodels.config.shipped import PACKAGE
from worldmodels.errors import DISTRIBUTION, WorldModelsError, install
from worldmodels.runs.provenance import provenance
from worldmodels.system.cores import available_cores, cores_in_words
from worldmodels.system.disk import existing, unwritable
from worldmodels.version import __version__

DEPENDENCIES = (
    *("torch", "gymnasium", "Box2D", "cma", "pyvirtualdisplay", "h5py", "hydra-core", "wandb"),
    *("hdf5plugin", "imageio-ffmpeg", "jinja2", "lightning-fabric", "loky", "markupsafe"),
    *("matplotlib", "numba", "numpy", "psutil", "rich", "safetensors", "scipy", "threadpoolctl"),
)
OPTIONAL = {
    "atari": ("ale-py",),
    "baselines": ("stable-baselines3",),
    "cuda": ("numba-cuda",),
    "doom": ("vizdoom",),
    "envpool": ("envpool",),
    "gcs": ("gcsfs",),
    "hub": ("huggingface-hub",),
    "lerobot": ("pyarrow",),
    "minari": ("minari",),
    "onnx": ("onnx", "onnxruntime", "onnxscript"),
    "r3d18": ("torchvision",),
    "ray": ("ray",),
    "s3": ("s3fs",),
    "slurm": ("hydra-submitit-launcher",),
    "sweep": ("optuna",),
    "tensorboard": ("tensorboard",),
    "timesformer": ("transformers",),
}
"""The packages of each extra."""

_THREAD_SETTINGS = (
    *("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"),
    "OPENBLAS_CORETYPE",
)
CGROUP = Path("/sys/fs/cgroup")
"""Where Linux lists the limits of a container."""
_CGROUP_MEMORY = ("memory.max", "memory/memory.limit_in_bytes")  # of version 2 and 1
_DRIVER_SECONDS = 5.0


class Row(NamedTuple):
    """One finding.

    Args:
        name: what was examined.
        value: what was found.
        problem: the error line, where the configuration cannot run with that.
        optional: it is absent, and the configuration does not need it.
    """

    name: str
    value: str
    problem: str | None = None
    optional: bool = False

    @property
    def status(self) -> str:
        """ "ok", "missing", or "-" for what is optional and absent."""
        return "missing" if self.problem else "-" if self.optional else "ok"


def diagnose(config: Config) -> list[Row]:
    """All rows, for every stage of a run of `config`."""
    probes: dict[str, Callable[[Config], Iterator[Row]]] = {
        "program": program,
        "packages": packages,
        "extras": optional_packages,
        "machine": machine,
        "threads": threads,
        "GPU": gpus,
        "device": device,
        "environment": environment,
        "display": display,
        "simulator": simulator,
        "data": storage,
    }
    rows: list[Row] = []
    for name, probe in probes.items():
        try:
            rows += probe(config)
        except Exception as error:
            # A probe that fails costs its own row only.
            rows.append(Row(name, f"unknown ({type(error).__name__}: {error})"))
    return rows


def program(config: Config) -> Iterator[Row]:
    """This package, Python and the operating system."""
    commit = provenance()["commit"] or "unknown"
    yield Row(DISTRIBUTION, f"{__version__}, commit {commit}, in {PACKAGE}")
    yield Row("Python", f"{platform.python_version()} ({sys.executable})")
    yield Row("system", platform.platform())


def packages(config: Config) -> Iterator[Row]:
    """The packages that every installation has."""
    found = {name: _version(name) for name in DEPENDENCIES}
    absent = [name for name, version in found.items() if version is None]
    problem = None
    if absent:
        problem = f"packages: {', '.join(absent)} not installed; pip install {DISTRIBUTION}"
    yield Row("packages", ", ".join(f"{k} {v or 'absent'}" for k, v in found.items()), problem)


def optional_packages(config: Config) -> Iterator[Row]:
    """The extras, and how to get those that are absent."""
    for extra, names in OPTIONAL.items():
        versions = {name: _version(name) for name in names}
        absent = None in versions.values()
        found = ", ".join(f"{name} {version}" for name, version in versions.items())
        value = f"absent: {install(extra)}" if absent else found
        yield Row(f"extra {extra}", value, optional=absent)


def machine(config: Config) -> Iterator[Row]:
    """Cores and memory, and what limits them."""
    limits = {"machine": os.cpu_count() or 1}
    if hasattr(os, "sched_getaffinity"):
        limits["affinity"] = len(os.sched_getaffinity(0))
    if "LOKY_MAX_CPU_COUNT" in os.environ:
        limits["LOKY_MAX_CPU_COUNT"] = int(os.environ["LOKY_MAX_CPU_COUNT"])
    usable = available_cores()
    by = [f"{name} {count}" for name, count in limits.items()]
    if usable < min(limits.values()):
        by.append(f"container's quota {usable}")
    yield Row("cores", f"{cores_in_words()} ({', '.join(by)})")
    yield Row("processor", str(provenance()["machine"]))
    memory = psutil.virtual_memory()
    value = f"{_gigabytes(memory.total)}, {_gigabytes(memory.available)} of it available"
    limit = memory_limit()
    if limit is not None and limit < memory.total:
        value += f"; this container may use {_gigabytes(limit)}"
    yield Row("memory", value)


def threads(config: Config) -> Iterator[Row]:
    """Settings of the computing threads that are in force."""
    import torch

    settings = [f"{name}={os.environ[name]}" for name in _THREAD_SETTINGS if name in os.environ]
    yield Row("threads", ", ".join([f"torch {torch.get_num_threads()}", *settings]))


def gpus(config: Config) -> Iterator[Row]:
    """NVIDIA's GPUs with their driver, and Metal."""
    import torch

    driver = _driver()
    built = f"torch built for CUDA {torch.version.cuda}" if torch.version.cuda else "torch for CPU"
    if torch.cuda.is_available():
        for number in range(torch.cuda.device_count()):
            found = torch.cuda.get_device_properties(number)
            memory = _gigabytes(found.total_memory)
            yield Row(f"GPU {number}", f"{found.name}, {memory}, {driver or 'driver unknown'}")
        yield Row("CUDA", built)
    else:
        yield Row("CUDA", f"not available ({driver or 'no NVIDIA driver'}, {built})", optional=True)
    metal = torch.backends.mps.is_available()
    yield Row("Metal (mps)", "available" if metal else "not available", optional=not metal)


def device(config: Config) -> Iterator[Row]:
    """The device that ``device=`` chooses, and its arithmetic."""
    from worldmodels.system.devices import choose_device, has_bfloat16

    wanted = f"device={config.device.name}"
    try:
        chosen = choose_device(config.device.name)
    except WorldModelsError as error:
        yield Row("device", f"{wanted} is not here", str(error))
        return
    yield Row("device", f"{chosen.type} ({wanted})")
    quick = has_bfloat16(chosen)
    value = "computed by the hardware" if quick else "not computed by the hardware: float32 instead"
    yield Row("bfloat16", value, optional=not quick)


def environment(config: Config) -> Iterator[Row]:
    """Whether the modules are there that a whole run of the chosen environment imports."""
    env = config.env
    try:
        extras.check(replace(config, stage=Stage.all))
        problem = None
    except WorldModelsError as error:
        problem = str(error)
    yield Row("environment", f"{env.name} ({env.id}, engine {env.engine.name})", problem)


def display(config: Config) -> Iterator[Row]:
    """The X display, and Xvfb."""
    from worldmodels.envs.display import missing_display

    here = os.environ.get("DISPLAY")
    server = shutil.which("Xvfb")
    value = f"DISPLAY={here}" if here else "no DISPLAY"
    value += f", Xvfb {server}" if server else ", Xvfb not installed"
    problem = missing_display(config.display.value, config.env.needs_display)
    yield Row("display", value, problem, optional=not (here or server))


def simulator(config: Config) -> Iterator[Row]:
    """Where the compiled CarRacing is kept."""
    from worldmodels.envs.carracing.compiled import find_folder, is_current

    folder = find_folder()
    if folder is not None and is_current(folder):
        yield Row("simulator", f"compiled, in {folder}")
    else:
        yield Row("simulator", f"will be compiled at its first use (half a minute), in {folder}")


def storage(config: Config) -> Iterator[Row]:
    """Free space, and whether artifacts can be written; leaves nothing behind."""
    data = Path(config.data)
    place = existing(data)
    yield Row("free disk", f"{_gigabytes(shutil.disk_usage(place).free)} at data={config.data}")
    shared = Path("/dev/shm")
    if shared.is_dir():
        yield Row("shared memory", f"{_gigabytes(shutil.disk_usage(shared).free)} free")
    else:
        yield Row("shared memory", "no /dev/shm here", optional=True)
    reason = unwritable(data)
    if reason is not None:
        problem = f"data={config.data}: cannot be written ({reason}); choose another folder"
        yield Row("data", f"{data} cannot be written", problem)
    else:
        value = "can be written" if data.is_dir() else "can be made"
        yield Row("data", f"{data.absolute()} {value}")


def _version(name: str) -> str | None:
    with contextlib.suppress(metadata.PackageNotFoundError):
        return metadata.version(name)
    return None


def _gigabytes(count: float) -> str:
    return f"{count / 1e9:,.1f} GB"


def memory_limit() -> int | None:
    """What a container's memory is limited to, in bytes; None where there is no limit."""
    for name in _CGROUP_MEMORY:
        with contextlib.suppress(OSError, ValueError):  # "max" is not a number
            return int((CGROUP / name).read_text())
    return None


def _driver() -> str | None:
    """NVIDIA's driver, where its command answers."""
    command = shutil.which("nvidia-smi")
    if command is None:
        return None
    line = [command, "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(
            line, capture_output=True, text=True, timeout=_DRIVER_SECONDS, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return "NVIDIA's driver does not answer"
    return f"driver {done.stdout.splitlines()[0].strip()}" if done.stdout.strip() else None
