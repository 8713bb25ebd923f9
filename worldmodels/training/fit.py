"""One loop that trains V and M: epochs of batches, validation after each, checkpoints in between.

A run that is stopped at any moment ends in the same weights as one that is not: the order of the
batches is a function of (seed, epoch), the random numbers of a step are a function of (seed, step),
and the checkpoint holds the rest.
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

from worldmodels import interrupts, weights
from worldmodels.errors import TrainingError
from worldmodels.integrity import require_made_by, require_regular
from worldmodels.tracking import MetricsLog, Progress


class Task(Protocol):
    """What is trained and on what; V and M each have one."""

    module: nn.Module
    unit: str  # what `count` counts, for the throughput

    def batches(self, epoch: int, start: int) -> Iterator[Any]:
        """The batches of `epoch` from number `start` on, in host memory."""
        ...

    def steps(self, epoch: int) -> int:
        """How many batches `epoch` has."""
        ...

    def validation(self) -> Iterator[Any]:
        """The validation batches, the same at each call."""
        ...

    def loss(self, batch: Any, carry: Any) -> tuple[Tensor, dict[str, Tensor], Any]:
        """Loss, logs, and what the next batch of the same pass needs to know of this one."""
        ...

    def count(self, batch: Any) -> int:
        """The size of a batch in units."""
        ...


@dataclass(frozen=True)
class FitOptions:
    """How to train.

    Args:
        epochs: passes over the training data.
        learning_rate: of Adam at the first step.
        final_learning_rate: at the last, reached by exponential decay.
        gradient_clip: bound on each gradient element, or None.
        seed: of everything random.
        made_by: hash of configuration and inputs, which a checkpoint has to have been made with.
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
    """The best validation loss and its logs, and the training throughput in `unit` a second."""

    validation: dict[str, float]
    throughput: float
    unit: str

    @property
    def rates(self) -> dict[str, float]:
        """The throughput by its unit; nothing where nothing was trained."""
        return {f"{self.unit}/s": self.throughput} if self.throughput else {}

    @property
    def pace(self) -> str:
        """The throughput in words."""
        return f"{self.throughput:,.0f} {self.unit}/s" if self.throughput else "no training"


def fit(
    task: Task, folder: Path, options: FitOptions, fabric: Fabric, tracker: MetricsLog
) -> FitResult:
    """Train `task.module`, resuming from `folder` if it holds a checkpoint.

    On return the module has the weights of the epoch with the lowest validation loss.

    Raises:
        ArtifactError: a checkpoint in `folder` is damaged, or was made by something else.
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
        """How it goes, for whoever watches."""
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
                f"{self.folder}: the loss is {value} at step {self.step} (epoch {self.epoch}):"
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
            raise TrainingError(f"the validation loss is {values['loss']} in epoch {self.epoch}")
        self.tracker.log(self.step, {f"validation/{name}": v for name, v in values.items()})
        if not self.best or values["loss"] < self.best["loss"]:
            self.best = values
            state = {"module": self.task.module.state_dict(), "made_by": self.options.made_by}
            weights.save(self.folder / "best.safetensors", state)

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
            "made_by": self.options.made_by,
        }
        weights.save(self.folder / "checkpoint.safetensors", state)

    def _load(self, name: str) -> dict[str, Any]:
        """A checkpoint of this fit."""
        path = self.folder / name
        require_regular(path)
        state = weights.load(path)
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
    """Mean validation loss and logs, weighted by batch size, with random numbers of their own.

    The same `seed` gives the same numbers for every epoch and model, so that losses compare.
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
