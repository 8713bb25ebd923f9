"""The simulator on a GPU: in numba.cuda, in torch's memory and on torch's stream.

Nothing but controls, rewards and flags passes between host and device at a step, and courses when
an episode begins; frames stay where they were drawn. Only for a GPU does `vector` import this
module, and with it torch.
"""

from __future__ import annotations

import math
import warnings
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
from worldmodels.envs.carracing.state import BY_TILE, Envs, empty_envs
from worldmodels.errors import WorldModelsError, install


def _words(tensor: Tensor) -> Tensor:
    """The same memory in a type that torch can index."""
    return tensor.view(torch.int32) if tensor.dtype == torch.uint32 else tensor


def usable() -> bool:
    """Whether numba can compile for a GPU that is here."""
    return bool(cuda.is_available())


class CudaSimulator:
    """N environments in a GPU's memory: `simulator.CpuSimulator` there.

    Args:
        num_envs: number of environments N.
        size: side of the frames, 64 or 96.
        percent: share of the tiles after which a lap counts.
        device: "cuda", or one of several: "cuda:1".

    Raises:
        WorldModelsError: numba cannot use a GPU here.
    """

    def __init__(self, num_envs: int, size: int, percent: float, device: str) -> None:
        if not usable():
            raise WorldModelsError(
                f"device={device}: numba can use no GPU here: {install('cuda')} on a machine with"
                " an NVIDIA driver, or use device=cpu"
            )
        # Of a kernel for few environments, numba says at every launch that it does not fill a GPU.
        warnings.filterwarnings("ignore", message=".*Grid size .* low occupancy")
        # The simulator that numba has for machines without a GPU works on the host's memory.
        simulated = bool(vars(numba.config)["ENABLE_CUDASIM"])
        self._device = torch.device("cpu" if simulated else device)
        if self._device.type == "cuda":
            cuda.select_device(self._device.index or 0)
        self._percent, self._size = percent, size
        self._table = CourseTable()
        self._rows = np.zeros(num_envs, np.int32)
        # Of tensors, here and below.
        self._envs: Any = Envs._make(self._upload(array) for array in empty_envs(num_envs, 1))
        self._courses: Any = Courses._make(self._upload(array) for array in self._table.courses)
        self._font = self._upload(SUMS)
        self._frames = torch.zeros(
            (num_envs, size, size, 3), dtype=torch.uint8, device=self._device
        )
        self._bind()

    def begin(self, envs: Sequence[int], courses: Sequence[Course]) -> None:
        """Put the cars of `envs` at the start of `courses`, one each."""
        before = self._table.courses
        self._upload_courses(before, self._table.assign(self._rows, envs, courses))
        chosen = np.zeros(len(self._rows), np.bool_)
        chosen[envs] = True
        self._choose(chosen)
        self._per_env(kernels.reset, self._percent)

    def controls(self, actions: Any) -> tuple[Tensor, NDArray[np.bool_]]:
        """Actions ``(N, 3)`` as `step` takes them, and which environments' are finite ``(N,)``."""
        controls = torch.as_tensor(actions, dtype=torch.float64, device=self._device)
        return controls, np.asarray(torch.isfinite(controls).all(dim=1).cpu())

    def step(
        self, controls: Any, active: NDArray[np.bool_]
    ) -> tuple[NDArray[np.float64], NDArray[np.int8]]:
        """One step of the `active` environments; rewards and ends, see `game.step`."""
        self._batch.controls.copy_(controls)
        self._batch.rewards.zero_()
        self._batch.ends.zero_()
        self._choose(active)
        self._per_env(kernels.step, self._percent)
        return self._batch.rewards.cpu().numpy().copy(), self._batch.ends.cpu().numpy().copy()

    def draw(self, chosen: NDArray[np.bool_]) -> None:
        """Draw the frames of the `chosen` environments."""
        self._choose(chosen)
        draw: Any = kernels.draw_small if self._size == SMALL else kernels.draw_full
        draw[(len(self._rows), kernels.BANDS), kernels.THREADS, self._stream()](*self._arrays)
        if self._size != SMALL:
            self._per_env(kernels.draw_bars)

    def frames(self, copy: bool) -> Tensor:
        """What was drawn last, ``(N, size, size, 3)``: a copy, or the memory that is drawn into."""
        return self._frames.clone() if copy else self._frames

    def keep(self, mask: NDArray[np.bool_]) -> None:
        """Drop the environments where `mask` (N,) is False."""
        index = torch.from_numpy(mask).to(self._device)
        self._rows = self._rows[mask]
        self._envs = Envs._make(tensor[index] for tensor in self._envs)
        self._frames = self._frames[index]
        self._bind()

    def get_state(self, envs: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
        """Copies of the arrays of `envs`, in the host's memory; see `snapshot.State`."""
        courses, course = self._table.select(self._rows[envs])
        state = {f"courses.{name}": array for name, array in courses._asdict().items()}
        index, tiles = self._index(envs), courses.tiles.shape[1]
        for name, tensor in self._envs._asdict().items():
            kept = tensor[index, :tiles] if name in BY_TILE else tensor[index]
            state[f"envs.{name}"] = course if name == "course" else kept.cpu().numpy()
        return state | {"frames": self._frames[index].cpu().numpy()}

    def set_state(self, state: Mapping[str, NDArray[Any]], envs: NDArray[np.int64]) -> None:
        """Overwrite `envs` with copies of the arrays that `get_state` gave, on any device.

        Args:
            state: of as many environments, or of one, which is copied to all of `envs`.
            envs: indices of different environments.
        """
        courses = Courses._make(state[f"courses.{name}"] for name in Courses._fields)
        before, index = self._table.courses, self._index(envs)
        written = self._table.adopt(self._rows, envs, courses, state["envs.course"])
        self._upload_courses(before, written)
        for name, tensor in self._envs._asdict().items():
            if name in BY_TILE:
                tensor[index] = False
                tensor[index, : courses.tiles.shape[1]] = self._upload(state[f"envs.{name}"])
            elif name != "course":
                tensor[index] = self._upload(state[f"envs.{name}"])
        self._frames[index] = self._upload(state["frames"])

    def _index(self, envs: NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(envs).to(self._device)

    def _upload_courses(self, before: Courses, written: list[int]) -> None:
        """Bring the rows of the table that were `written` to the device, or all if it grew."""
        if self._table.courses is not before:
            self._courses = Courses._make(self._upload(array) for array in self._table.courses)
            self._widen(self._table.courses.tiles.shape[1])
            self._bind()
        elif written:
            for name, tensor in self._courses._asdict().items():
                rows = getattr(self._table.courses, name)[written]
                _words(tensor)[written] = _words(self._upload(rows))
        self._envs.course.copy_(torch.from_numpy(self._rows))

    def _upload(self, array: NDArray[Any]) -> Tensor:
        return torch.from_numpy(array.copy()).to(self._device)

    def _widen(self, tiles: int) -> None:
        """Have room for the flags of so many tiles."""
        more = (0, tiles - self._envs.visited.shape[1])
        self._envs = self._envs._replace(
            visited=torch.nn.functional.pad(self._envs.visited, more),
            touched=torch.nn.functional.pad(self._envs.touched, more),
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
        groups: tuple[Any, ...] = (self._envs, self._courses, self._batch)
        self._arrays = [group._make(self._array(tensor) for tensor in group) for group in groups]

    def _array(self, tensor: Tensor) -> Any:
        if self._device.type == "cuda":
            return cuda.as_cuda_array(tensor, sync=False)
        return tensor.numpy()

    def _choose(self, envs: NDArray[np.bool_]) -> None:
        self._batch.active.copy_(torch.from_numpy(envs))

    def _per_env(self, kernel: Any, *more: float) -> None:
        """A kernel with a thread for each environment."""
        blocks = math.ceil(len(self._rows) / kernels.ENVS_PER_BLOCK)
        kernel[blocks, kernels.ENVS_PER_BLOCK, self._stream()](*self._arrays, *more)

    def _stream(self) -> Any:
        """Torch's, so that kernels and torch's own work keep their order."""
        if self._device.type == "cuda":
            return cuda.external_stream(torch.cuda.current_stream(self._device).cuda_stream)
        return 0
