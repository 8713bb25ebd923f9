"""The loop that trains encoder and dynamics model: epochs, validation, checkpoints, resumption.

Training that is stopped at any moment and resumed gives the same weights as without the stop: the
order of the batches is a function of (seed, epoch), the random numbers of a step are a function of
(seed, step), and the checkpoint holds the rest.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from worldmodels.errors import ArtifactError, TrainingError
from worldmodels.files import weights
from worldmodels.runs.integrity import require_made_by, require_regular
from worldmodels.runs.tracking import MetricsLog, Progress
from worldmodels.system import interrupts


class Task(Protocol):
    """A module and its data: `EncoderTask` and `DynamicsTask`.

    Args:
        module: what is trained; `fit` replaces it by the module that Fabric wraps.
        unit: what `count` counts, in the plural, for the throughput.
    """

    module: nn.Module
    unit: str

    def batches(self, epoch: int, start: int) -> Iterator[Any]:
        """The training batches of one epoch, in host memory.

        Args:
            epoch: number of the epoch, from 0; it determines the order.
            start: number of the first batch to yield, from 0; above 0 after a resumption.
        """
        ...

    def steps(self, epoch: int) -> int:
        """The number of training batches in epoch `epoch`."""
        ...

    def validation(self) -> Iterator[Any]:
        """The validation batches, the same at each call."""
        ...

    def loss(self, batch: Any, carry: Any) -> tuple[Tensor, dict[str, Tensor], Any]:
        """The loss of one batch.

        Args:
            batch: what `batches` or `validation` yields.
            carry: the third result for the previous batch of the same pass; None for the first.

        Returns:
            the loss, a scalar with gradients; detached scalars to log, by name; and the state to
            carry to the next batch of the same pass, such as an RNN's, cut from the graph.
        """
        ...

    def count(self, batch: Any) -> int:
        """The size of a batch in `unit`; it weights the batch in the validation loss."""
        ...


@dataclass(frozen=True)
class FitOptions:
    """Options of `fit`.

    Args:
        epochs: passes over the training data; 0 validates the untrained module.
        learning_rate: of Adam at the first step.
        final_learning_rate: at the last step, reached by exponential decay.
        gradient_clip: bound on the absolute value of each gradient element; None for no clipping.
        seed: of all random numbers.
        checkpoint_seconds: least time between two checkpoints within an epoch, in seconds.
        log_every: steps between two rows of training metrics.
        made_by: hash of configuration and inputs; a checkpoint with another one is refused.
    """

    epochs: int
    learning_rate: float
    final_learning_rate: float
    gradient_clip: float | None
    seed: int
    checkpoint_seconds: float
    log_every: int
    made_by: str = ""


@dataclass
class FitResult:
    """The results of `fit`.

    Args:
        validation: loss and logs of the epoch with the lowest validation loss, by name.
        throughput: of training, in `unit` per second; 0 where nothing was trained.
        unit: see `Task`.
    """

    validation: dict[str, float]
    throughput: float
    unit: str

    @property
    def rates(self) -> dict[str, float]:
        """The throughput as ``{"<unit>/s": value}``; empty where nothing was trained."""
        return {f"{self.unit}/s": self.throughput} if self.throughput else {}

    @property
    def pace(self) -> str:
        """The throughput as text."""
        return f"{self.throughput:,.0f} {self.unit}/s" if self.throughput else "no training"


def fit(
    task: Task, folder: Path, options: FitOptions, fabric: Fabric, tracker: MetricsLog
) -> FitResult:
    """Train `task.module`, resuming from `folder` if it holds a checkpoint.

    On return the module has the weights of the epoch with the lowest validation loss, which are
    also in ``best.safetensors``.

    Args:
        task: module and data.
        folder: of the checkpoints.
        options: how to train.
        fabric: device and precision.
        tracker: for training and validation metrics; rows after the checkpoint are removed.

    Raises:
        ArtifactError: a checkpoint in `folder` is damaged, or has another `made_by`.
        TrainingError: the loss is not finite.
        Stopped: the process was asked to stop; the checkpoint is saved.
    """
    loop = _Loop(task, folder, options, fabric, tracker)
    return loop.run()


class _Loop:
    """The state of a fit: what the checkpoint holds."""

    def __init__(
        self, task: Task, folder: Path, options: FitOptions, fabric: Fabric, tracker: MetricsLog
    ) -> None:
        self.task, self.folder, self.options = task, folder, options
        self.fabric, self.tracker = fabric, tracker
        fused = fabric.device.type != "mps"  # Metal has it from torch 2.5 on only
        parameters = task.module.parameters()
        optimizer = torch.optim.Adam(parameters, lr=options.learning_rate, fused=fused)
        task.module, self.optimizer = fabric.setup(task.module, optimizer)
        self.total = sum(task.steps(epoch) for epoch in range(options.epochs))
        self.epoch, self.batch, self.step = 0, 0, 0
        self.carry: Any = None
        self.best: dict[str, float] = {}
        self.trained, self.seconds = 0, 0.0

    def run(self) -> FitResult:
        if (self.folder / "checkpoint.safetensors").exists():
            self._resume()
        self.tracker.rewind(self.step)
        with Progress(self.folder.name, self.total, "batches", self.step) as progress:
            while self.epoch < self.options.epochs:
                self._epoch(progress)
                self._validate()
                self.epoch, self.batch, self.carry = self.epoch + 1, 0, None
                self._save()
        if self.options.epochs == 0:  # an untrained model, to compare with
            self._validate()
        best = self._load("best.safetensors")
        self.task.module.load_state_dict(best["module"])
        return FitResult(self.best, self.trained / max(self.seconds, 1e-9), self.task.unit)

    def _epoch(self, progress: Progress) -> None:
        saved = counted = time.monotonic()
        logs: dict[str, Tensor] = {}
        for batch in self.task.batches(self.epoch, self.batch):
            logs = self._train_step(batch)
            self.trained += self.task.count(batch)
            self.batch, self.step = self.batch + 1, self.step + 1
            now = time.monotonic()
            self.seconds += now - counted
            counted = now
            progress.advance()
            if self.step % self.options.log_every == 0:
                self.tracker.log(self.step, self._train_logs(logs))
                progress.advance(0, self._pace(float(logs["loss"])))
            if now - saved > self.options.checkpoint_seconds or interrupts.requested():
                self._save()
                interrupts.check()
                saved = counted = time.monotonic()

    def _pace(self, loss: float) -> str:
        """Epoch, loss and throughput for the progress display."""
        rate = self.trained / max(self.seconds, 1e-9)
        epoch = f"epoch {self.epoch + 1} of {self.options.epochs}"
        return f"{epoch}, loss {loss:.4g}, {rate:,.0f} {self.task.unit}/s"

    def _train_step(self, batch: Any) -> dict[str, Tensor]:
        module, options = self.task.module, self.options
        module.train()
        torch.manual_seed(_mix(options.seed, self.step))
        for group in self.optimizer.param_groups:
            group["lr"] = self._learning_rate()
        loss, logs, self.carry = self.task.loss(batch, self.carry)
        value = loss.item()
        if not math.isfinite(value):
            raise TrainingError(
                f"{self.folder}: the loss is {value} at step {self.step} (epoch {self.epoch});"
                " lower the learning rate and use overwrite=true"
            )
        self.optimizer.zero_grad(set_to_none=True)
        self.fabric.backward(loss)
        if options.gradient_clip is not None:
            nn.utils.clip_grad_value_(module.parameters(), options.gradient_clip)
        self.optimizer.step()
        return {"loss": loss.detach()} | logs

    def _train_logs(self, logs: dict[str, Tensor]) -> dict[str, float]:
        values = {f"train/{name}": float(value) for name, value in logs.items()}
        return values | {"train/learning_rate": self._learning_rate()}

    def _learning_rate(self) -> float:
        options = self.options
        ratio = options.final_learning_rate / options.learning_rate
        return float(options.learning_rate * ratio ** (self.step / max(self.total - 1, 1)))

    def _validate(self) -> None:
        values = evaluate(self.task, self.options.seed)
        if not math.isfinite(values["loss"]):
            raise TrainingError(
                f"{self.folder}: the validation loss is {values['loss']} in epoch {self.epoch};"
                " lower the learning rate and use overwrite=true"
            )
        self.tracker.log(self.step, {f"validation/{name}": v for name, v in values.items()})
        if not self.best or values["loss"] < self.best["loss"]:
            self.best = values
            self._write("best.safetensors", {"module": self.task.module.state_dict()})

    def _save(self) -> None:
        self.tracker.flush()
        state = {
            "module": self.task.module.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "carry": None if self.carry is None else list(self.carry),
            "epoch": self.epoch,
            "batch": self.batch,
            "step": self.step,
            "best": self.best,
            "trained": self.trained,
            "seconds": self.seconds,
        }
        self._write("checkpoint.safetensors", state)

    def _write(self, name: str, state: dict[str, Any]) -> None:
        state = state | {"made_by": self.options.made_by}
        weights.save(self.folder / name, state | {"sha256": weights.digest(state)})

    def _load(self, name: str) -> dict[str, Any]:
        """A checkpoint of this fit, verified."""
        path = self.folder / name
        require_regular(path)
        state = weights.load(path)
        found = state.pop("sha256", None)  # older versions wrote none
        if found is not None and found != weights.digest(state):
            raise ArtifactError(
                f"{path} is damaged (its content is not that of its SHA-256); make its stage again"
                " with overwrite=true"
            )
        require_made_by(path, [state.get("made_by")], self.options.made_by)
        return state

    def _resume(self) -> None:
        state = self._load("checkpoint.safetensors")
        self.task.module.load_state_dict(state["module"])
        self.optimizer.load_state_dict(state["optimizer"])
        # The fused Adam walks weights and moments side by side in memory, so a moment must lie as
        # its weight does: channels last, for a convolution.
        for parameter, moments in self.optimizer.state.items():
            for name in ("exp_avg", "exp_avg_sq"):
                moments[name] = torch.empty_like(parameter).copy_(moments[name])
        self.epoch, self.batch, self.step = state["epoch"], state["batch"], state["step"]
        self.best = state["best"]
        self.trained, self.seconds = state["trained"], state["seconds"]
        self.carry = weights.state_on(self.fabric.device, state["carry"])


@torch.no_grad()
def evaluate(task: Task, seed: int) -> dict[str, float]:
    """Mean validation loss and logs, weighted by batch size.

    Args:
        task: its module is set to evaluation mode.
        seed: of the random numbers, the same for every epoch and model, so that losses are
            comparable.

    Returns:
        ``loss`` and the logs of the task, by name.
    """
    task.module.eval()
    torch.manual_seed(_mix(seed, -1))
    sums: dict[str, float] = {}
    total, carry = 0, None
    for batch in task.validation():
        loss, logs, carry = task.loss(batch, carry)
        count = task.count(batch)
        total += count
        for name, value in ({"loss": loss} | logs).items():
            sums[name] = sums.get(name, 0.0) + float(value) * count
    return {name: value / max(total, 1) for name, value in sums.items()}


def _mix(seed: int, step: int) -> int:
    """One seed from two, so that neighbouring runs share no step's random numbers."""
    return (seed * 0x9E3779B97F4A7C15 + step * 0xBF58476D1CE4E5B9 + 0x94D049BB133111EB) % 2**63
