"""The generations of CMA-ES: ask, evaluate, tell, log; at intervals evaluation on selection seeds.

With `EvolveOptions.overlap`, the candidates of a generation are asked for and given to the workers
before those of the one before are told. The order of asking and telling is fixed, whatever is done
first, so that the result depends on the seed alone here too.

Two logs in the folder are the whole state of a search: ``generations.jsonl``, the fitness of all
candidates, and ``selection.jsonl``, the scores of the mean and of the best candidate on the
selection seeds, with the parameters of the better one. A search that was stopped is restored by
repeating ask and tell with the fitness values of the log. Shapes are in the letters of
docs/shapes.md: P candidates, E episodes per candidate.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from worldmodels import seeds
from worldmodels.evolution.exploitation import Exploitation
from worldmodels.evolution.fitness import (
    EpisodeSpec,
    Evaluation,
    begin,
    fitness,
    wanted_episodes,
)
from worldmodels.evolution.options import EvolveOptions, EvolveResult
from worldmodels.evolution.pca import PCASubspace
from worldmodels.evolution.search import Search
from worldmodels.files.atomic import JsonLines
from worldmodels.models.controller import ControllerSpec
from worldmodels.runs.integrity import require_made_by
from worldmodels.runs.tracking import MetricsLog, Progress, say
from worldmodels.seeds import Purpose
from worldmodels.workers.jobs import Heartbeat, Pool
from worldmodels.worlds.world import World

RELIABILITY = 0.7
"""Share of the variance of candidates' mean returns that is due to the candidates."""
GROWTH = 1.1
"""Largest factor by which the number of episodes changes from one generation to the next."""


def evolve(
    search: Search,
    subspace: PCASubspace,
    spec: ControllerSpec,
    open_pool: Callable[[Heartbeat], Pool[World]],
    folder: Path,
    options: EvolveOptions,
    tracker: MetricsLog,
) -> EvolveResult:
    """Run a search to its end; it continues after the last generation of the logs in `folder`.

    Args:
        search: newly made, over coordinates in `subspace`.
        subspace: from coordinates to parameters of controllers.
        spec: layers of the controllers.
        open_pool: makes workers that have the world and report their steps to the given function.
        folder: of the logs.
        options: how to evolve.
        tracker: for metrics; rows after the last logged generation are removed.

    Raises:
        ArtifactError: a log is damaged, or has another `made_by`.
        Stopped: the process was asked to stop; finished generations are in the log.
    """
    loop = _Loop(search, subspace, spec, folder, options, tracker)
    loop.run(open_pool)
    return loop.result()


def shown(score: float, intrinsic: str | None) -> str:
    """A mean return in words; see `EvolveOptions.intrinsic`."""
    return f"{score:.1f}" if intrinsic is None else f"{intrinsic} {score:.3g}"


def batch_size(num_envs: tuple[int, int], episodes: int) -> int:
    """Environments of one job, for so many episodes in all; see `EvolveOptions.num_envs`."""
    fewest, most = num_envs
    return min(most, max(fewest, episodes // 4))


@dataclass
class _Generation:
    """Candidates that were asked for.

    Args:
        number: of the generation, from 0.
        candidates: (P, size).
        episodes: E of each of them.
        temperature: of the learned model; None for that of the world.
        wanted: whether they are to be evaluated; False beyond the last generation.
    """

    number: int
    candidates: np.ndarray
    episodes: int
    temperature: float | None
    wanted: bool
    evaluation: Evaluation | None = None
    began: float = 0.0


class _Loop:
    """The state of a search: what its logs hold."""

    def __init__(
        self,
        search: Search,
        subspace: PCASubspace,
        spec: ControllerSpec,
        folder: Path,
        options: EvolveOptions,
        tracker: MetricsLog,
    ) -> None:
        self.search, self.subspace, self.spec = search, subspace, spec
        self.options, self.tracker = options, tracker
        self.log = JsonLines(folder / "generations.jsonl")
        self.selection = JsonLines(folder / "selection.jsonl")
        self.asked: deque[_Generation] = deque()
        self.steps, self.seconds = 0, 0.0
        self.free = 0.0
        """When the last generation and its selection had ended, of this process."""
        self.episodes = float(options.first_episodes or options.episodes)
        self.exploitation = Exploitation(options.recorded_best, options.exploitation_patience)

    def run(self, open_pool: Callable[[Heartbeat], Pool[World]]) -> None:
        """Repeat the logged generations without their episodes, then run the missing ones."""
        records, evaluated = self.log.read(), self.selection.read()
        for log, lines in ((self.log, records), (self.selection, evaluated)):
            found = (record.get("made_by") for record in lines)
            require_made_by(log.path, found, self.options.made_by)
        selected = {record["generation"]: float(record["score"]) for record in evaluated}
        total = self.options.total_steps or self.options.generations
        done = sum(self._counted(record["steps"]) for record in records)
        unit = "steps" if self.options.total_steps else "generations"
        with Progress("evolving", total, unit, done) as progress:
            self.step_progress = _StepProgress(progress)
            with open_pool(self.step_progress) as pool:
                self.tracker.rewind(len(records))
                for record in records:
                    self._replay(pool, record, selected)
                while not self.exploitation.stops and (generation := self._next(pool)).wanted:
                    before = self.steps
                    scores = self._generation(pool, generation)
                    self._select_if_due(pool, generation.candidates, scores, selected)
                    self.free = time.monotonic()
                    progress.advance(self._counted(self.steps - before))

    def result(self) -> EvolveResult:
        """The best controller on the selection seeds, with steps and throughput.

        The evaluation at the end of a search that was continued does not count: one that was not
        interrupted has none.
        """
        records = [
            record
            for record in self.selection.read()
            if self._on_interval(record["generation"])
            or record["generation"] == self.search.generation - 1
        ]
        if self.options.exploitation_patience is not None:
            within = [one for one in records if not self.exploitation.exceeds(one["score"])]
            records = within or records
        # An older version had no penalty, and no objective beside the score.
        best = max(records, key=lambda record: float(record.get("objective", record["score"])))
        return EvolveResult(
            np.asarray(best["parameters"], np.float32),
            float(best["score"]),
            self.search.generation,
            self.steps,
            self.steps / max(self.seconds, 1e-9),
            self.exploitation.began,
        )

    def _on_interval(self, number: int) -> bool:
        """Whether every search evaluates this generation, numbered from 0."""
        return (number + 1) % self.options.eval_interval == 0

    def _counted(self, steps: int) -> int:
        """What a generation of so many steps adds to the progress: steps of a budget, or 1."""
        return steps if self.options.total_steps else 1

    @property
    def _over(self) -> bool:
        """Whether the last generation is finished: where they overlap, not yet with the one that
        used up the budget, since the next one has been asked for."""
        if any(generation.wanted for generation in self.asked):
            return False
        return self._spent or self.search.generation >= self.options.generations

    @property
    def _spent(self) -> bool:
        """Whether the budget of steps is used up."""
        return self.options.total_steps is not None and self.steps >= self.options.total_steps

    def _ask(self) -> None:
        """Ask for the generation that is told next and, where they overlap, for the one after."""
        while self.search.asked - self.search.generation <= self.options.overlap:
            number = self.search.asked
            wanted = not self._spent and number < self.options.generations
            episodes, temperature = round(self.episodes), self._temperature(number)
            candidates = self.search.ask()
            self.asked.append(_Generation(number, candidates, episodes, temperature, wanted))

    def _temperature(self, number: int) -> float | None:
        """Of the learned model in generation `number`, which is asked for now."""
        if self.options.temperatures is None:
            return None
        (first, last), budget = self.options.temperatures, self.options.total_steps
        spent = number / self.options.generations if budget is None else self.steps / budget
        return first + (last - first) * min(1.0, spent)

    def _next(self, pool: Pool[World]) -> _Generation:
        """The generation that is told next; the workers have it and those that overlap it."""
        self._ask()
        for generation in self.asked:
            if generation.wanted and generation.evaluation is None:
                self._begin(pool, generation)
        return self.asked.popleft()

    def _begin(self, pool: Pool[World], generation: _Generation) -> None:
        drawn = seeds.draw(
            Purpose.TRAINING, self.options.seed, generation.number, count=generation.episodes
        )
        candidates = self.subspace.controllers(generation.candidates)
        num_envs = batch_size(self.options.num_envs, len(candidates) * len(drawn))
        spec = EpisodeSpec(
            num_envs,
            self.options.max_steps,
            self.spec,
            self.options.stall_steps,
            temperature=generation.temperature,
        )
        generation.began = time.monotonic()
        generation.evaluation = begin(pool, candidates, drawn, spec)

    def _replay(
        self, pool: Pool[World], record: dict[str, Any], selected: dict[int, float]
    ) -> None:
        """Repeat a generation from its record; run its selection if that is missing."""
        self._ask()
        candidates, scores = self.asked.popleft().candidates, np.asarray(record["fitness"])
        self.steps += record["steps"]
        self.seconds += record["seconds"]
        self.episodes = record["next_episodes"]
        self._tell(scores)
        self._select_if_due(pool, candidates, scores, selected)

    def _generation(self, pool: Pool[World], generation: _Generation) -> np.ndarray:
        """Evaluate, tell and log; the fitness (P,)."""
        number = generation.number
        self.step_progress.begin(f"generation {number + 1}")
        assert generation.evaluation is not None
        began = max(generation.began, self.free)
        outcome = generation.evaluation.outcome(pool)
        seconds, steps = time.monotonic() - began, int(outcome.lengths.sum())
        self.seconds += seconds
        self.steps += steps
        maximised = self.options.objective(outcome)
        scores: np.ndarray = maximised.mean(axis=1)
        self._tell(scores)
        self._allocate(maximised)
        values = {"mean": scores.mean(), "best": scores.max(), "worst": scores.min()}
        values |= {"sigma": self.search.sigma, "steps": steps, "episodes": generation.episodes}
        named = {f"fitness/{k}": float(v) for k, v in values.items()}
        if generation.temperature is not None:
            named["dream/temperature"] = generation.temperature
        if outcome.disagreement is not None:
            named["dream/disagreement"] = float(outcome.disagreement.mean())
        self.tracker.log(number + 1, named)
        self.tracker.flush()
        self.log.append(
            {
                "generation": number,
                "fitness": scores.tolist(),
                "episodes": generation.episodes,
                "next_episodes": self.episodes,
                "steps": steps,
                "seconds": round(seconds, 3),
                "made_by": self.options.made_by,
            }
        )
        return scores

    def _tell(self, scores: np.ndarray) -> None:
        """Update the search; with `final_sigma`, set the step size for the steps taken."""
        self.search.tell(scores)
        options = self.options
        self.tracker.env_steps = options.frame_skip * self.steps
        if options.final_sigma is not None and options.total_steps is not None:
            spent = min(1.0, self.steps / options.total_steps)
            self.search.set_sigma(options.sigma * (options.final_sigma / options.sigma) ** spent)

    def _allocate(self, returns: np.ndarray) -> None:
        """Change the number of episodes towards `wanted_episodes`."""
        first = self.options.first_episodes
        if first is not None:
            wanted = wanted_episodes(returns, RELIABILITY)
            change = np.clip(wanted / self.episodes, 1 / GROWTH, GROWTH)
            self.episodes = float(np.clip(self.episodes * change, first, self.options.episodes))

    def _select_if_due(
        self,
        pool: Pool[World],
        candidates: np.ndarray,
        fitness_values: np.ndarray,
        selected: dict[int, float],
    ) -> None:
        """Evaluate the mean and the generation's best on the selection seeds; log the better."""
        number, options = self.search.generation - 1, self.options
        due = self._over or self._on_interval(number)
        if number in selected and due:
            self.exploitation.judge(number + 1, selected[number])
        if number in selected or not due:
            return
        self.step_progress.begin(f"selection after generation {number + 1}")
        finalists = self.subspace.controllers(
            np.stack([self.search.mean, candidates[int(fitness_values.argmax())]])
        )
        drawn = seeds.draw(Purpose.SELECTION, options.seed, count=options.eval_episodes)
        num_envs = batch_size(options.num_envs, len(finalists) * len(drawn))
        spec = EpisodeSpec(num_envs, options.max_steps, self.spec)
        outcome = fitness(pool, finalists, drawn, spec)
        scores, objective = outcome.returns.mean(axis=1), options.objective(outcome).mean(axis=1)
        better = int(objective.argmax())
        self.exploitation.judge(number + 1, float(scores[better]))
        # Named otherwise where they are no returns of the task, which charts and sweeps show.
        group = "selection" if options.intrinsic is None else "novelty"
        values = {f"{group}/mean": float(scores[0]), f"{group}/best": float(scores[1])}
        if options.recorded_best is not None:
            values["selection/recorded_best"] = options.recorded_best
            values["selection/exploitation"] = float(self.exploitation.in_a_row > 0)
        self.tracker.log(number + 1, values)
        self.tracker.flush()
        self.selection.append(
            {
                "generation": number,
                "score": float(scores[better]),
                "objective": float(objective[better]),
                "which": ("mean", "best")[better],
                "parameters": finalists[better].tolist(),
                "made_by": options.made_by,
            }
        )
        found = [shown(score, options.intrinsic) for score in scores]
        say(
            f"controller: generation {number + 1}: {found[0]} (mean of the search),"
            f" {found[1]} (its best candidate) on {len(drawn)} selection seeds"
            f"{self.exploitation.in_words()}"
        )
        self.tracker.show(number + 1, finalists[better])


class _StepProgress:
    """Shows steps and throughput within a generation, which may take minutes."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self.begin("")

    def begin(self, what: str) -> None:
        """Start counting the steps of `what`."""
        self.what, self.steps, self.began = what, 0, time.monotonic()

    def __call__(self, steps: int) -> None:
        self.steps += steps
        rate = self.steps / max(time.monotonic() - self.began, 1e-9)
        self.progress.advance(0, f"{self.what}: {self.steps:,} steps, {rate:,.0f} a second")
