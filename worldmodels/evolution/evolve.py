"""The generations of CMA-ES: ask, evaluate, tell, log; at intervals evaluation on selection seeds.

Two logs in the folder are the whole state of a search: ``generations.jsonl``, the fitness of all
candidates, and ``selection.jsonl``, the scores of the mean and of the best candidate on the
selection seeds, with the parameters of the better one. A search that was stopped is restored by
repeating ask and tell with the fitness values of the log. Shapes are in the letters of
docs/shapes.md: P candidates, E episodes per candidate.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from worldmodels import seeds
from worldmodels.evolution.fitness import EpisodeSpec, fitness, wanted_episodes
from worldmodels.evolution.pca import PCASubspace
from worldmodels.evolution.search import Search
from worldmodels.files.atomic import JsonLines
from worldmodels.models.controller import ControllerSpec
from worldmodels.runs.integrity import require_made_by
from worldmodels.runs.tracking import MetricsLog, Progress, say
from worldmodels.seeds import Purpose
from worldmodels.workers.pool import Heartbeat, Pool
from worldmodels.worlds.world import World

RELIABILITY = 0.7
"""Share of the variance of candidates' mean returns that is due to the candidates."""
GROWTH = 1.1
"""Largest factor by which the number of episodes changes from one generation to the next."""


@dataclass(frozen=True)
class EvolveOptions:
    """Options of `evolve`.

    Args:
        generations: at most.
        total_steps: environment steps after which no generation begins; None for no limit.
        sigma: initial step size.
        final_sigma: step size at the end of the budget, reached by exponential decay over the steps
            taken; None for the step size that CMA-ES adapts.
        episodes: E, per candidate and generation, at most.
        first_episodes: E of the first generation; then E is adapted by `wanted_episodes`. None for
            `episodes` in every generation.
        max_steps: time limit of an episode in steps.
        stall_steps: see `worldmodels.worlds.rollout.rollout`; never used on selection seeds.
        eval_interval: generations between two evaluations on the selection seeds.
        eval_episodes: episodes of each finalist in such an evaluation.
        num_envs: least and largest number of environments in one job; within them a quarter of a
            generation, which gives several cores work and does not depend on the number of workers.
        seed: of the episodes.
        made_by: hash of configuration and inputs; logs with another one are refused.
    """

    generations: int
    total_steps: int | None
    sigma: float
    final_sigma: float | None
    episodes: int
    first_episodes: int | None
    max_steps: int
    stall_steps: int | None
    eval_interval: int
    eval_episodes: int
    num_envs: tuple[int, int]
    seed: int
    made_by: str = ""


@dataclass(frozen=True)
class EvolveResult:
    """The results of a search.

    Args:
        parameters: of the controller with the highest mean return on the selection seeds,
            (parameters,) float32.
        score: that mean return.
        generations: number of generations.
        steps: environment steps in training, without those on selection seeds.
        throughput: of training, steps per second.
    """

    parameters: np.ndarray
    score: float
    generations: int
    steps: int
    throughput: float


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
        self.steps, self.seconds = 0, 0.0
        self.episodes = float(options.first_episodes or options.episodes)

    def run(self, open_pool: Callable[[Heartbeat], Pool[World]]) -> None:
        """Repeat the logged generations without their episodes, then run the missing ones."""
        records, evaluated = self.log.read(), self.selection.read()
        for log, lines in ((self.log, records), (self.selection, evaluated)):
            found = (record.get("made_by") for record in lines)
            require_made_by(log.path, found, self.options.made_by)
        selected = {record["generation"] for record in evaluated}
        total = self.options.total_steps or self.options.generations
        done = sum(self._counted(record["steps"]) for record in records)
        unit = "steps" if self.options.total_steps else "generations"
        with Progress("evolving", total, unit, done) as progress:
            self.step_progress = _StepProgress(progress)
            with open_pool(self.step_progress) as pool:
                self.tracker.rewind(len(records))
                for record in records:
                    self._replay(pool, record, selected)
                while not self._over:
                    before = self.steps
                    candidates, scores = self._generation(pool)
                    self._select_if_due(pool, candidates, scores, selected)
                    progress.advance(self._counted(self.steps - before))

    def result(self) -> EvolveResult:
        """The best controller on the selection seeds, with steps and throughput."""
        best = max(self.selection.read(), key=lambda record: float(record["score"]))
        return EvolveResult(
            np.asarray(best["parameters"], np.float32),
            float(best["score"]),
            self.search.generation,
            self.steps,
            self.steps / max(self.seconds, 1e-9),
        )

    def _counted(self, steps: int) -> int:
        """What a generation of so many steps adds to the progress: steps of a budget, or 1."""
        return steps if self.options.total_steps else 1

    @property
    def _over(self) -> bool:
        """Whether the last generation, or the one that used up the budget, is finished."""
        options = self.options
        spent = options.total_steps is not None and self.steps >= options.total_steps
        return spent or self.search.generation >= options.generations

    def _replay(self, pool: Pool[World], record: dict[str, Any], selected: set[int]) -> None:
        """Repeat a generation from its record; run its selection if that is missing."""
        candidates, scores = self.search.ask(), np.asarray(record["fitness"])
        self.steps += record["steps"]
        self.seconds += record["seconds"]
        self.episodes = record["next_episodes"]
        self._tell(scores)
        self._select_if_due(pool, candidates, scores, selected)

    def _generation(self, pool: Pool[World]) -> tuple[np.ndarray, np.ndarray]:
        """Ask, evaluate, tell and log; the candidates (P, size) and their fitness (P,)."""
        number, options = self.search.generation, self.options
        self.step_progress.begin(f"generation {number + 1}")
        candidates = self.search.ask()
        drawn = seeds.draw(Purpose.TRAINING, options.seed, number, count=round(self.episodes))
        began = time.monotonic()
        num_envs = self._num_envs(len(candidates) * len(drawn))
        spec = EpisodeSpec(num_envs, options.max_steps, self.spec, options.stall_steps)
        outcome = fitness(pool, self.subspace.controllers(candidates), drawn, spec)
        seconds, steps = time.monotonic() - began, int(outcome.lengths.sum())
        self.seconds += seconds
        self.steps += steps
        scores = outcome.returns.mean(axis=1)
        self._tell(scores)
        self._allocate(outcome.returns)
        self.log.append(
            {
                "generation": number,
                "fitness": scores.tolist(),
                "episodes": len(drawn),
                "next_episodes": self.episodes,
                "steps": steps,
                "seconds": round(seconds, 3),
                "made_by": self.options.made_by,
            }
        )
        values = {"mean": scores.mean(), "best": scores.max(), "worst": scores.min()}
        values |= {"sigma": self.search.sigma, "steps": steps, "episodes": len(drawn)}
        self.tracker.log(number + 1, {f"fitness/{k}": float(v) for k, v in values.items()})
        self.tracker.flush()
        return candidates, scores

    def _tell(self, scores: np.ndarray) -> None:
        """Update the search; with `final_sigma`, set the step size for the steps taken."""
        self.search.tell(scores)
        options = self.options
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
        selected: set[int],
    ) -> None:
        """Evaluate the mean and the generation's best on the selection seeds; log the better."""
        number, options = self.search.generation - 1, self.options
        due = self._over or (number + 1) % options.eval_interval == 0
        if number in selected or not due:
            return
        self.step_progress.begin(f"selection after generation {number + 1}")
        finalists = self.subspace.controllers(
            np.stack([self.search.mean, candidates[int(fitness_values.argmax())]])
        )
        drawn = seeds.draw(Purpose.SELECTION, options.seed, count=options.eval_episodes)
        num_envs = self._num_envs(len(finalists) * len(drawn))
        spec = EpisodeSpec(num_envs, options.max_steps, self.spec)
        outcome = fitness(pool, finalists, drawn, spec)
        scores = outcome.returns.mean(axis=1)
        better = int(scores.argmax())
        self.selection.append(
            {
                "generation": number,
                "score": float(scores[better]),
                "which": ("mean", "best")[better],
                "parameters": finalists[better].tolist(),
                "made_by": options.made_by,
            }
        )
        self.tracker.log(
            number + 1, {"selection/mean": float(scores[0]), "selection/best": float(scores[1])}
        )
        self.tracker.flush()
        say(
            f"controller: generation {number + 1}: {scores[0]:.1f} (mean of the search),"
            f" {scores[1]:.1f} (its best candidate) on {len(drawn)} selection seeds"
        )

    def _num_envs(self, episodes: int) -> int:
        """Environments of one job, for so many episodes in all."""
        fewest, most = self.options.num_envs
        return min(most, max(fewest, episodes // 4))


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
