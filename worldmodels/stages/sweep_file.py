"""What sweeps by trials and by a population share: the stages, and the file ``sweep.json``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from worldmodels.agents.folder import fingerprint as agent_fingerprint
from worldmodels.config.choices import Optimizer, Target, WorldKind
from worldmodels.config.execution import SweepConfig
from worldmodels.config.schema import flat, plain
from worldmodels.config.usage import written
from worldmodels.errors import ArtifactError, ConfigError
from worldmodels.files.atomic import write_json
from worldmodels.files.untrusted import read_json
from worldmodels.runs.bases import SWEEP, SWEEP_BYTES
from worldmodels.runs.provenance import provenance
from worldmodels.runs.tracking import read_metrics
from worldmodels.stages import baseline, controller, rnn, rollouts, vae
from worldmodels.stages.context import Context

STAGES: dict[Target, tuple[ModuleType, ...]] = {
    Target.vae: (rollouts, vae),
    Target.rnn: (rollouts, vae, rnn),
    Target.controller: (rollouts, vae, rnn, controller),
    Target.baseline: (baseline,),
}
"""The stages of a trial; the last is the one that is tried."""
METRICS = {
    Target.vae: "validation/loss",
    Target.rnn: "validation/nll",
    Target.controller: "selection/mean",
    Target.baseline: "selection/mean",
}
T = TypeVar("T")


class SweepFile:
    """``sweep.json`` of a run.

    Args:
        context: of the command.
        part: of the file, which has the trials or the intervals.
        without: keys of ``sweep`` that may differ when the sweep goes on.
    """

    def __init__(self, context: Context, part: str, without: Sequence[str] = ()) -> None:
        sweep = context.config.sweep
        self.metric = sweep.metric or METRICS[sweep.target]
        self.path = context.run.root / SWEEP
        self._inputs: dict[str, str] | None = None
        self._base = None if context.run.base is None else context.run.base.name
        self._part, self._overwrite = part, context.config.overwrite
        sections = {name: getattr(context.config, name) for name in ("env", "rollouts", "vae")}
        sections |= {name: getattr(context.config, name) for name in ("rnn", "controller")}
        if context.config.controller.optimizer is Optimizer.actor_critic:
            sections["actor_critic"] = context.config.actor_critic
        self._settings = {
            **flat(seed=context.config.seed, baseline=context.config.baseline, **sections),
            **_of_sweep(sweep),
        }
        self._without = {f"sweep.{name}" for name in without}

    def read(self, entry: Callable[[Mapping[str, Any]], T]) -> list[T] | None:
        """What the file has, each as `entry` reads it; None where a sweep begins.

        Raises:
            ArtifactError: the file is damaged, or of other settings.
        """
        if self._overwrite or not self.path.exists():
            return None
        record, found = read_json(self.path, SWEEP_BYTES), list[T]()
        try:
            # An older version lacked some keys, which had the values that are defaults now.
            settings = _of_sweep(SweepConfig()) | record["settings"]
            if settings["sweep.method"] == self._settings["sweep.method"]:
                found += [entry(one) for one in record[self._part]]
                if record.get("inputs") is not None:  # an older version did not note them
                    self._inputs = dict(record["inputs"])
        except (TypeError, KeyError, ValueError, AttributeError) as error:
            raise ArtifactError(
                f"{self.path}: is not the record of a sweep ({type(error).__name__}: {error}); use"
                " overwrite=true"
            ) from None
        for key in sorted((settings.keys() | self._settings.keys()) - self._without):
            if settings.get(key) != self._settings.get(key):
                raise ArtifactError(
                    f"{self.path}: a sweep with {key}={written(settings.get(key))}, now"
                    f" {written(self._settings.get(key))}; choose another run=, or overwrite=true"
                )
        return found

    def note_inputs(self, context: Context) -> None:
        """Note what all trials are made from, once the stages before the one that is tried have
        run; before the file is written.

        Raises:
            ArtifactError: the trials in the file are made from something else.
        """
        target = context.config.sweep.target
        before = [stage.__name__.rpartition(".")[2] for stage in STAGES[target][:-1]]
        if target is Target.baseline and context.config.controller.world is WorldKind.dream:
            before = ["vae", "rnn"]
        inputs = {name: context.run.fingerprint(name) for name in before if context.run.has(name)}
        if context.published is not None:
            inputs["base"] = agent_fingerprint(context.published)
        known = inputs if self._inputs is None else self._inputs
        for name in sorted(inputs.keys() | known.keys()):
            if inputs.get(name) != known.get(name):
                raise ArtifactError(
                    f"{self.path}: a sweep that was made from {name} {known.get(name)}, now"
                    f" {inputs.get(name)}; choose another run=, or overwrite=true"
                )
        self._inputs = inputs

    def write(self, entries: Sequence[Mapping[str, Any]], **more: Any) -> None:
        """Write the file: its entries, and what else is known of the sweep."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_json(
            self.path,
            {
                **provenance(),
                "metric": self.metric,
                **more,
                "settings": self._settings,
                "base": self._base,
                "inputs": self._inputs,
                self._part: list(entries),
            },
        )


def no_such_metric(metric: str, folder: Path) -> ConfigError:
    """The error of a metric that a stage does not write.

    Args:
        metric: its name.
        folder: of the finished stage.
    """
    known = sorted({name for _, name, *_ in read_metrics(folder / "metrics.csv")})
    return ConfigError(
        f"sweep.metric={metric}: stage={folder.name} has no such metric; choose one of"
        f" {', '.join(known)}"
    )


def _of_sweep(sweep: SweepConfig) -> dict[str, Any]:
    return {f"sweep.{name}": plain(value) for name, value in vars(sweep).items()}
