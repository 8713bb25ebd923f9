"""The loop that trains encoder and dynamics model: epochs, validation, checkpoints, resumption.

Training that is stopped at any moment and resumed gives the same weights as without the stop: the
order of the batches is a function of (seed, epoch), the random numbers of a step are a function of
(seed, step), and the checkpoint holds the rest. So it is, up to rounding, with another number of
processes or parts of a batch (`worldmodels.training.parts`).
"""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from worldmodels.errors import Stopped, TrainingError
from worldmodels.files import weights
from worldmodels.runs.tracking import MetricsLog, Progress, say
from worldmodels.system import interrupts
from worldmodels.training import checkpoint
from worldmodels.training.parts import Part, Parts, added, mean, side_by_side
from worldmodels.training.ranks import ALONE, Ranks
from worldmodels.training.task import Task


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
        accumulate: parts in which a process computes its rows of a batch.
        compile: compile the loss.
        continued: folder of another fit, which this one continues from where `folder` has no
            checkpoint: with its weights, optimiser and epochs. Only epochs of this fit are
            compared for the lowest validation loss.
    """

    epochs: int
    learning_rate: float
    final_learning_rate: float
    gradient_clip: float | None
    seed: int
    checkpoint_seconds: float
    log_every: int
    made_by: str = ""
    accumulate: int = 1
    compile: bool = False
    continued: Path | None = None


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
    task: Task,
    folder: Path,
    options: FitOptions,
    fabric: Fabric,
    tracker: MetricsLog | None,
    ranks: Ranks = ALONE,
) -> FitResult:
    """Train `task.module`, resuming from `folder` if it holds a checkpoint.

    On return the module has, in rank 0, the weights of the epoch with the lowest validation loss,
    which are also in ``best.safetensors``.

    Args:
        task: module and data, the same in every process.
        folder: of the checkpoints, which every process reads and rank 0 writes.
        options: how to train.
        fabric: device and precision.
        tracker: for training and validation metrics, rows after the checkpoint are removed; None in
            the ranks above 0.
        ranks: the processes that train, each of which calls this function.

    Raises:
        ArtifactError: a checkpoint in `folder` is damaged, or has another `made_by`.
        TrainingError: the loss is not finite, memory does not suffice for one row of a batch, or
            another process has failed.
        Stopped: one of the processes was asked to stop; the checkpoint is saved.
    """
    try:
        return _Loop(task, folder, options, fabric, tracker, ranks).run()
    except Exception as error:
        ranks.fail(error)
        raise


@dataclass
class _Step:
    """What the processes agree on in one step."""

    loss: float
    stop: int
    """The signal by which a process was asked to stop; 0 for none."""
    due: bool
    """A checkpoint is to be written."""
    parts: list[Part] = field(default_factory=list)


class _Loop:
    """The state of a fit: what the checkpoint holds."""

    def __init__(
        self,
        task: Task,
        folder: Path,
        options: FitOptions,
        fabric: Fabric,
        tracker: MetricsLog | None,
        ranks: Ranks,
    ) -> None:
        self.task, self.folder, self.options = task, folder, options
        self.fabric, self.tracker, self.ranks = fabric, tracker, ranks
        # Without those of a network that is frozen.
        self.parameters = [part for part in task.module.parameters() if part.requires_grad]
        split = side_by_side(task.module, options.compile)
        self.parts = Parts(ranks, options.accumulate, fabric.device, split)
        self.told = self.parts.number
        self.total = sum(task.steps(epoch) for epoch in range(options.epochs))
        self.epoch, self.batch, self.step = 0, 0, 0
        self.rows = 0
        self.carry: Sequence[Tensor] | None = None
        self.best: dict[str, float] = {}
        self.trained, self.seconds = 0, 0.0
        self.saved = time.monotonic()

    def run(self) -> FitResult:
        self._begin()
        with self.parts, Progress(self.folder.name, self.total, "batches", self.step) as progress:
            while self.epoch < self.options.epochs:
                self._epoch(progress)
                self._validate()
                self.epoch, self.batch, self.carry = self.epoch + 1, 0, None
                self._save()
                if self.tracker is not None:
                    self.tracker.show(self.step)
            if self.options.epochs == 0:  # an untrained model, to compare with
                self._validate()
        if self.ranks.first:
            best = self._load("best.safetensors")
            self.task.module.load_state_dict(best["module"])
        return FitResult(self.best, self.trained / max(self.seconds, 1e-9), self.task.unit)

    def _begin(self) -> None:
        """Bring module and optimiser to the device, and all processes to the same step."""
        fused = self.fabric.device.type != "mps"  # Metal has it from torch 2.5 on only
        optimizer = torch.optim.Adam(self.parameters, lr=self.options.learning_rate, fused=fused)
        if self.ranks.size == 1:
            _, self.optimizer = self.fabric.setup(self.task.module, optimizer)
        else:
            # Not through PyTorch's DDP module: that takes means of equal weight over processes, and
            # cannot repeat a backward pass that ran out of memory in one of them.
            self.task.module.to(self.fabric.device)
            self.optimizer = self.fabric.setup_optimizers(optimizer)
        if (self.folder / "checkpoint.safetensors").exists():
            self._resume(self._load("checkpoint.safetensors"))
        elif self.options.continued is not None:
            before = checkpoint.read(self.options.continued / "checkpoint.safetensors", None)
            self._resume(before | {"best": {}, "trained": 0, "seconds": 0.0})
        found = self.ranks.exchange(self.step, self.total)
        if any(others != found[0] for others in found):
            self.ranks.fail_together(
                TrainingError(
                    f"{self.folder}: the processes find different checkpoints or data (step and"
                    f" number of steps: {found}); put data= on storage that all nodes share"
                )
            )
        self.ranks.copy_from_first(self.task.module.state_dict().values())
        if self.options.compile:
            self.task.compile()
        if self.tracker is not None:
            self.tracker.rewind(self.step)

    def _epoch(self, progress: Progress) -> None:
        self.saved = counted = time.monotonic()
        for batch in self.task.batches(self.epoch, self.batch):
            step = self._train_step(batch)
            self.trained += self.task.count(batch)
            self.batch, self.step = self.batch + 1, self.step + 1
            now = time.monotonic()
            self.seconds += now - counted
            counted = now
            progress.advance()
            if self.step % self.options.log_every == 0:
                self._log(self._train_logs(step.parts))
                progress.advance(0, self._pace(step.loss))
            if self.ranks.size == 1:
                step.stop, step.due = interrupts.received(), self._due()
            if step.due or step.stop:
                self._save()
                if step.stop:
                    self.ranks.fail_together(Stopped(signal.Signals(step.stop).name))
                self.saved = counted = time.monotonic()

    def _due(self) -> bool:
        """Whether it is time for a checkpoint."""
        return time.monotonic() - self.saved > self.options.checkpoint_seconds

    def _pace(self, loss: float) -> str:
        """Epoch, loss and throughput for the progress display."""
        rate = self.trained / max(self.seconds, 1e-9)
        epoch = f"epoch {self.epoch + 1} of {self.options.epochs}"
        return f"{epoch}, loss {loss:.4g}, {rate:,.0f} {self.task.unit}/s"

    def _train_step(self, batch: Any) -> _Step:
        module, options = self.task.module, self.options
        module.train()
        torch.manual_seed(_mix(options.seed, self.step))
        for group in self.optimizer.param_groups:
            group["lr"] = self._learning_rate()
        self.rows = self.task.rows(batch)
        if self.rows < self.ranks.size:
            self.ranks.fail_together(
                TrainingError(
                    f"trainer.devices: {self.ranks.size} processes cannot share batches of"
                    f" {self.rows} rows ({self.folder}); choose at most {self.rows} processes"
                )
            )
        parts, self.carry = self.parts.run(self.task, batch, self.carry, self.fabric.backward)
        step = self._agree(parts)
        self.ranks.sum_gradients(self.parameters)
        if options.gradient_clip is not None:
            nn.utils.clip_grad_value_(self.parameters, options.gradient_clip)
        self.optimizer.step()
        self.task.stepped()
        return step

    def _agree(self, parts: list[Part]) -> _Step:
        """What all processes do after the gradients of a step are computed.

        Raises:
            TrainingError: the loss is not finite.
        """
        loss = sum(float(part.values["loss"]) * part.share for part in parts)
        found = self.ranks.exchange(
            loss, self.parts.number, interrupts.received(), self.ranks.first and self._due()
        )
        losses, numbers, signals, due = (list(column) for column in zip(*found, strict=True))
        if not math.isfinite(sum(losses)):
            self.ranks.fail_together(
                TrainingError(
                    f"{self.folder}: the loss is {sum(losses)} at step {self.step} (epoch"
                    f" {self.epoch}); lower the learning rate and use overwrite=true"
                )
            )
        if max(numbers) > self.told:
            self.told = int(max(numbers))
            say(
                f"{self.folder.name}: out of memory at step {self.step}; a batch of {self.rows}"
                f" rows is computed in {self.told * self.ranks.size} parts now, to the same result"
            )
        return _Step(sum(losses), int(max(signals)), any(due), parts)

    def _log(self, values: dict[str, float]) -> None:
        if self.tracker is not None:
            self.tracker.log(self.step, values)

    def _train_logs(self, parts: list[Part]) -> dict[str, float]:
        values = added(self.ranks.gather(mean(parts)))
        named = {f"train/{name}": value for name, value in values.items()}
        return named | {"train/learning_rate": self._learning_rate()}

    def _learning_rate(self) -> float:
        options = self.options
        ratio = options.final_learning_rate / options.learning_rate
        return float(options.learning_rate * ratio ** (self.step / max(self.total - 1, 1)))

    def _validate(self) -> None:
        values = evaluate(self.task, self.options.seed, self.parts)
        if not math.isfinite(values["loss"]):
            self.ranks.fail_together(
                TrainingError(
                    f"{self.folder}: the validation loss is {values['loss']} in epoch {self.epoch};"
                    " lower the learning rate and use overwrite=true"
                )
            )
        self._log({f"validation/{name}": value for name, value in values.items()})
        if not self.best or values["loss"] < self.best["loss"]:
            self.best = values
            if self.ranks.first:
                self._write("best.safetensors", {"module": self.task.module.state_dict()})

    def _save(self) -> None:
        carry = None if self.carry is None else self.ranks.whole(self.carry, self.rows)
        if not self.ranks.first:
            return
        if self.tracker is not None:
            self.tracker.flush()
        state = {
            "module": self.task.module.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "carry": carry,
            "epoch": self.epoch,
            "batch": self.batch,
            "step": self.step,
            "best": self.best,
            "trained": self.trained,
            "seconds": self.seconds,
        }
        self._write("checkpoint.safetensors", state)

    def _write(self, name: str, state: dict[str, Any]) -> None:
        checkpoint.write(self.folder / name, state, self.options.made_by)

    def _load(self, name: str) -> dict[str, Any]:
        """A checkpoint of this fit, verified."""
        return checkpoint.read(self.folder / name, self.options.made_by)

    def _resume(self, state: dict[str, Any]) -> None:
        """Go on from the state of a checkpoint."""
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
        carry = state["carry"]
        if carry is not None:
            own = self.ranks.share(len(carry[0]))
            self.carry = weights.state_on(self.fabric.device, [part[own] for part in carry])


@torch.no_grad()
def evaluate(task: Task, seed: int, parts: Parts) -> dict[str, float]:
    """Mean validation loss and logs, weighted by batch size.

    Args:
        task: its module is set to evaluation mode.
        seed: of the random numbers, the same for every epoch and model, so that losses are
            comparable.
        parts: how batches are computed, and by which processes.

    Returns:
        ``loss`` and the logs of the task, by name.
    """
    task.module.eval()
    torch.manual_seed(_mix(seed, -1))
    sums: dict[str, float] = {}
    total = 0
    carry: Sequence[Tensor] | None = None
    for batch in task.validation():
        done, carry = parts.run(task, batch, carry)
        for part in done:
            total += part.size
            for name, value in part.values.items():
                sums[name] = sums.get(name, 0.0) + float(value) * part.size
    found = added(parts.ranks.gather({"": total} | sums))
    size = found.pop("")
    return {name: value / max(size, 1) for name, value in found.items()}


def _mix(seed: int, step: int) -> int:
    """One seed from two, so that neighbouring runs share no step's random numbers."""
    return (seed * 0x9E3779B97F4A7C15 + step * 0xBF58476D1CE4E5B9 + 0x94D049BB133111EB) % 2**63
