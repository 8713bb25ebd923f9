"""Trials of a sweep: values by Optuna's TPE, and its median rule to stop a trial early.

Optuna keeps nothing: before each trial its study is made anew of the trials before, and its
sampler of a seed for that trial, so that a sweep that was killed goes on as it would have.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import numpy as np
import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances
from optuna.pruners import MedianPruner, NopPruner
from optuna.samplers import TPESampler
from optuna.trial import TrialState

from worldmodels.config.space import Range, Space
from worldmodels.errors import WorldModelsError

optuna.logging.set_verbosity(optuna.logging.WARNING)

RUNNING, FINISHED, STOPPED, FAILED = "running", "finished", "stopped early", "failed"
"""States of a trial."""
_STATES = {
    FINISHED: TrialState.COMPLETE,
    STOPPED: TrialState.PRUNED,
    FAILED: TrialState.FAIL,
}


class StoppedEarly(WorldModelsError):
    """Ends the stages of a trial that is worse than those before it."""


@dataclass
class Trial:
    """One trial.

    Args:
        number: from 1.
        values: key of the configuration -> value.
        state: of `RUNNING`, `FINISHED`, `STOPPED`, `FAILED`.
        reports: the metric so far: step of the stage -> value.
        reason: why it failed.
        seconds: of work.
    """

    number: int
    values: dict[str, Any]
    state: str = RUNNING
    reports: dict[int, float] = field(default_factory=dict)
    reason: str = ""
    seconds: float = 0.0

    @property
    def name(self) -> str:
        """Of its folder."""
        return f"trial-{self.number:03d}"

    def record(self) -> dict[str, Any]:
        """As JSON holds it."""
        return asdict(self)

    @classmethod
    def read(cls, record: Mapping[str, Any]) -> Trial:
        """The trial of a `record`; raises what a damaged one gives."""
        own = {part.name: record[part.name] for part in fields(cls)}
        own["reports"] = {int(step): float(value) for step, value in record["reports"].items()}
        return cls(**own)


@dataclass(frozen=True)
class Rules:
    """How a study chooses.

    Args:
        maximise: whether larger values of the metric are better.
        random_trials: trials with random values at the beginning, none of which is stopped early.
        early_stopping: whether later ones can be.
        seed: of all values.
    """

    maximise: bool
    random_trials: int
    early_stopping: bool
    seed: int


class Study:
    """The trials of a sweep.

    Args:
        space: what is searched.
        rules: how.
        trials: those before, in their order; the last may be running.
    """

    def __init__(self, space: Space, rules: Rules, trials: Sequence[Trial] = ()) -> None:
        self.trials = list(trials)
        self._rules = rules
        self._distributions = {key: _distribution(values) for key, values in space.items()}
        self._running: optuna.Trial | None = None
        self._shares: tuple[int, dict[str, float]] = (0, {})
        """Trials that had ended, and the importances by them."""

    @property
    def running(self) -> Trial | None:
        """The trial that is running."""
        last = self.trials[-1] if self.trials else None
        return last if last is not None and last.state == RUNNING else None

    @property
    def ended(self) -> int:
        """Number of trials that are not running."""
        return len(self.trials) - (self.running is not None)

    def begin(self) -> Trial:
        """The trial that is running, or a new one."""
        trial = self.running
        if trial is None:
            trial = Trial(len(self.trials) + 1, {})
            self.trials.append(trial)
        study = self._study(trial.number)
        if trial.values:
            study.enqueue_trial(trial.values)
        self._running = study.ask(self._distributions)
        trial.values = {key: self._running.params[key] for key in self._distributions}
        for number, value in enumerate(trial.reports.values()):
            self._running.report(value, number)
        return trial

    def report(self, step: int, value: float) -> bool:
        """Note the metric of the running trial; whether the trial should stop.

        Args:
            step: of the stage. One that was reported before is repeated after a kill; its value is
                the same, and only the last one decides.
            value: of the metric.
        """
        trial = self.trials[-1]
        assert self._running is not None
        if step not in trial.reports:
            self._running.report(value, len(trial.reports))
            trial.reports[step] = value
        return step == max(trial.reports) and self._running.should_prune()

    def result(self, trial: Trial) -> float | None:
        """The best value of the metric; None where there is none, and of a trial that failed."""
        if trial.state == FAILED or not trial.reports:
            return None
        return (max if self._rules.maximise else min)(trial.reports.values())

    def ranked(self) -> list[Trial]:
        """The trials that are finished, the best one first."""
        done = [trial for trial in self.trials if trial.state == FINISHED]
        sign = -1 if self._rules.maximise else 1
        return sorted(done, key=lambda trial: sign * (self.result(trial) or 0.0))

    def importances(self) -> dict[str, float]:
        """Key -> its share of what the best quarter of the finished trials has in common, by
        PED-ANOVA (Watanabe et al. 2023); empty with fewer than eight of them.

        Keys that had one value in all trials have no share. The shares are computed again only when
        another trial has ended: the reports of a running one do not count.
        """
        if self._shares[0] != self.ended:
            self._shares = self.ended, self._importances()
        return self._shares[1]

    def _importances(self) -> dict[str, float]:
        if len(self.ranked()) < 8:
            return {}
        evaluator = PedAnovaImportanceEvaluator(target_quantile=0.25)
        found = get_param_importances(self._study(0), evaluator=evaluator)
        return {key: float(share) for key, share in found.items()}

    def _study(self, number: int) -> optuna.Study:
        """The finished trials, for a trial of that `number`."""
        rules = self._rules
        seed = int(np.random.SeedSequence([rules.seed, number]).generate_state(1)[0])
        pruner = MedianPruner(n_startup_trials=rules.random_trials)
        study = optuna.create_study(
            direction="maximize" if rules.maximise else "minimize",
            sampler=TPESampler(n_startup_trials=rules.random_trials, seed=seed),
            pruner=pruner if rules.early_stopping else NopPruner(),
        )
        for trial in self.trials:
            if trial.state == RUNNING:
                continue
            finished = trial.state == FINISHED
            study.add_trial(
                optuna.trial.create_trial(
                    state=_STATES[trial.state],
                    value=self.result(trial) if finished else None,
                    params=trial.values,
                    distributions=self._distributions,
                    intermediate_values=dict(enumerate(trial.reports.values())),
                )
            )
        return study


def _distribution(values: Any) -> BaseDistribution:
    if not isinstance(values, Range):
        return CategoricalDistribution(values.values)
    if values.whole:
        return IntDistribution(int(values.low), int(values.high), log=values.log)
    return FloatDistribution(values.low, values.high, log=values.log)
