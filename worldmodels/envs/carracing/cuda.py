"""Lanes on a GPU: the simulator in numba.cuda, in torch's memory and on torch's stream.

Nothing but controls, rewards and flags passes between host and device at a step, and courses when
an episode begins; frames stay where they were drawn.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numba
import numpy as np
import torch
from numba import cuda
from numpy.typing import NDArray
from torch import Tensor

from worldmodels.envs.carracing import cuda_kernels as kernels
from worldmodels.envs.carracing.courses import Course, Courses, CourseTable
from worldmodels.envs.carracing.glyphs import SUMS
from worldmodels.envs.carracing.picture import SMALL
from worldmodels.envs.carracing.state import Lanes, empty_lanes
from worldmodels.errors import WorldModelsError, install


def _words(tensor: Tensor) -> Tensor:
    """The same memory in a type that torch can index."""
    return tensor.view(torch.int32) if tensor.dtype == torch.uint32 else tensor


def usable() -> bool:
    """Whether numba can compile for a GPU that is here."""
    return bool(cuda.is_available())


class CudaSimulator:
    """N lanes in a GPU's memory: `simulator.CpuSimulator` there.

    Args:
        lanes: their number N.
        size: side of the frames, 64 or 96.
        percent: share of the tiles after which a lap counts.
        device: "cuda", or one of several: "cuda:1".

    Raises:
        WorldModelsError: numba cannot use a GPU here.
    """

    def __init__(self, lanes: int, size: int, percent: float, device: str) -> None:
        if not usable():
            raise WorldModelsError(
                f"device={device}: numba can use no GPU here: {install('cuda')} on a machine with"
                " an NVIDIA driver, or use device=cpu"
            )
        # The simulator that numba has for machines without a GPU works on the host's memory.
        simulated = bool(vars(numba.config)["ENABLE_CUDASIM"])
        self._device = torch.device("cpu" if simulated else device)
        if self._device.type == "cuda":
            cuda.select_device(self._device.index or 0)
        self._percent, self._size = percent, size
        self._table = CourseTable()
        self._rows = np.zeros(lanes, np.int32)
        # Of tensors, here and below.
        self._lanes: Any = Lanes._make(self._upload(array) for array in empty_lanes(lanes, 1))
        self._courses: Any = Courses._make(self._upload(array) for array in self._table.courses)
        self._font = self._upload(SUMS)
        self._frames = torch.zeros((lanes, size, size, 3), dtype=torch.uint8, device=self._device)
        self._bind()

    def begin(self, lanes: Sequence[int], courses: Sequence[Course]) -> None:
        """Put the cars of `lanes` at the start of `courses`, one each."""
        before = self._table.courses
        written = self._table.assign(self._rows, lanes, courses)
        if self._table.courses is not before:
            self._courses = Courses._make(self._upload(array) for array in self._table.courses)
            self._widen(self._table.courses.tiles.shape[1])
            self._bind()
        elif written:
            for name, tensor in self._courses._asdict().items():
                rows = getattr(self._table.courses, name)[written]
                _words(tensor)[written] = _words(self._upload(rows))
        self._lanes.course.copy_(torch.from_numpy(self._rows))
        chosen = np.zeros(len(self._rows), np.bool_)
        chosen[lanes] = True
        self._choose(chosen)
        self._over_lanes(kernels.reset, self._percent)

    def controls(self, actions: Any) -> tuple[Tensor, NDArray[np.bool_]]:
        """Actions ``(N, 3)`` as `step` takes them, and which lanes' are finite."""
        controls = torch.as_tensor(actions, dtype=torch.float64, device=self._device)
        return controls, np.asarray(torch.isfinite(controls).all(dim=1).cpu())

    def step(
        self, controls: Any, active: NDArray[np.bool_]
    ) -> tuple[NDArray[np.float64], NDArray[np.int8]]:
        """One step of the `active` lanes; rewards and ends, see `game.step`."""
        self._batch.controls.copy_(controls)
        self._batch.rewards.zero_()
        self._batch.ends.zero_()
        self._choose(active)
        self._over_lanes(kernels.step, self._percent)
        return self._batch.rewards.cpu().numpy().copy(), self._batch.ends.cpu().numpy().copy()

    def draw(self, chosen: NDArray[np.bool_]) -> None:
        """Draw what the `chosen` lanes see."""
        self._choose(chosen)
        draw: Any = kernels.draw_small if self._size == SMALL else kernels.draw_full
        draw[(len(self._rows), kernels.BANDS), kernels.THREADS, self._stream()](*self._arrays)
        if self._size != SMALL:
            self._over_lanes(kernels.draw_bars)

    def frames(self) -> Tensor:
        """A copy of what was drawn last, ``(N, size, size, 3)``, on the device."""
        return self._frames.clone()

    def keep(self, mask: NDArray[np.bool_]) -> None:
        """Drop the lanes where `mask` (N,) is False."""
        index = torch.from_numpy(mask).to(self._device)
        self._rows = self._rows[mask]
        self._lanes = Lanes._make(tensor[index] for tensor in self._lanes)
        self._frames = self._frames[index]
        self._bind()

    def get_state(self) -> dict[str, NDArray[Any]]:
        """Copies of all arrays by name, in the host's memory."""
        tensors = {f"lanes.{name}": tensor for name, tensor in self._lanes._asdict().items()}
        tensors |= {f"courses.{name}": tensor for name, tensor in self._courses._asdict().items()}
        tensors |= {"frames": self._frames}
        return {name: tensor.cpu().numpy().copy() for name, tensor in tensors.items()}

    def set_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Take copies of the arrays that `get_state` gave, here or on another device."""
        lanes = Lanes._make(state[f"lanes.{name}"] for name in Lanes._fields)
        self._rows = lanes.course.copy()
        self._lanes = Lanes._make(self._upload(array) for array in lanes)
        courses = (state[f"courses.{name}"].copy() for name in Courses._fields)
        self._table.replace(Courses._make(courses))
        self._courses = Courses._make(self._upload(array) for array in self._table.courses)
        self._frames = self._upload(state["frames"])
        self._bind()

    def _upload(self, array: NDArray[Any]) -> Tensor:
        return torch.from_numpy(array.copy()).to(self._device)

    def _widen(self, tiles: int) -> None:
        """Have room for the flags of so many tiles."""
        more = (0, tiles - self._lanes.visited.shape[1])
        self._lanes = self._lanes._replace(
            visited=torch.nn.functional.pad(self._lanes.visited, more),
            touched=torch.nn.functional.pad(self._lanes.touched, more),
        )

    def _bind(self) -> None:
        """Make the tensors known to numba, after any of them was replaced."""
        count = len(self._rows)
        self._batch = kernels.Batch(
            font=self._font,
            active=torch.zeros(count, dtype=torch.bool, device=self._device),
            controls=torch.zeros((count, 3), dtype=torch.float64, device=self._device),
            rewards=torch.zeros(count, dtype=torch.float64, device=self._device),
            ends=torch.zeros(count, dtype=torch.int8, device=self._device),
            frames=self._frames,
        )
        groups: tuple[Any, ...] = (self._lanes, self._courses, self._batch)
        self._arrays = [group._make(self._array(tensor) for tensor in group) for group in groups]

    def _array(self, tensor: Tensor) -> Any:
        if self._device.type == "cuda":
            return cuda.as_cuda_array(tensor, sync=False)
        return tensor.numpy()

    def _choose(self, lanes: NDArray[np.bool_]) -> None:
        self._batch.active.copy_(torch.from_numpy(lanes))

    def _over_lanes(self, kernel: Any, *more: float) -> None:
        """A kernel with a thread for each lane."""
        blocks = math.ceil(len(self._rows) / kernels.LANES_PER_BLOCK)
        kernel[blocks, kernels.LANES_PER_BLOCK, self._stream()](*self._arrays, *more)

    def _stream(self) -> Any:
        """Torch's, so that kernels and torch's own work keep their order."""
        if self._device.type == "cuda":
            return cuda.external_stream(torch.cuda.current_stream(self._device).cuda_stream)
        return 0
