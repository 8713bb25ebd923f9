"""Generations of a search: ask, play, tell and log, and now and then judge where it has come to.

Two logs in the search's folder are all of its state: ``generations.jsonl``, the fitness that was
told, and ``selection.jsonl``, what the mean and the best candidate were worth on seeds of their
own, with the better one's parameters. A search that was stopped asks and tells again what is there.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from worldmodels import seeds
from worldmodels.evolution.fitness import fitness, wanted_episodes
from worldmodels.evolution.pca import PCASubspace
from worldmodels.evolution.search import Search
from worldmodels.files import JsonLines
from worldmodels.integrity import require_made_by
from worldmodels.models.controller import ControllerSpec
from worldmodels.seeds import Purpose
from worldmodels.tracking import MetricsLog, Progress, say
from worldmodels.workers import Heartbeat, Pool
from worldmodels.worlds.world import World

RELIABILITY = 0.7
"""Share of the variance of the candidates' scores that is to be their own."""
GROWTH = 1.1
"""How much more or fewer episodes the next generation may have."""


@dataclass(frozen=True)
class EvolveOptions:
    """How to evolve.

    Args:
        generations: at most.
        total_steps: of steps, after which no generation begins; None for no bound.
        sigma: the step size at first.
        final_sigma: at the end of the budget, reached by exponential decay; None for CMA-ES's own.
        episodes: of a candidate, at most.
        first_episodes: of a candidate at first, and then as many as it takes to tell candidates
            apart; None for `episodes` always.
        max_steps: of an episode.
        stall_steps: see `worldmodels.worlds.rollout.rollout`; in training, never on selection
            seeds.
        select_every: generations from one judgement to the next.
        select_episodes: of each of the two that are judged.
        num_envs: fewest and most in an evaluation batch; between them a quarter of the generation,
            so that there are evaluation batches for several cores, whatever the number of workers.
        seed: of the episodes.
        made_by: hash of configuration and inputs, which the logs have to have been made with.
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
    """What a search came to.

    Args:
        parameters: of the controller with the best mean on the selection seeds, (parameters,).
        score: that mean.
        generations: played.
        steps: played in them, without those on selection seeds.
        throughput: of them, steps a second.
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
    """Bring `search`, newly made, to where the logs in `folder` end, then on to its end.

    Args:
        search: of coordinates in `subspace`.
        subspace: from coordinates to controllers.
        spec: of the controllers.
        open_pool: workers with that world, that report steps to a function.
        folder: of the logs.
        options: how to evolve.
        tracker: of the metrics.

    Raises:
        ArtifactError: a log is damaged, or was made by something else.
        Stopped: the process was asked to stop; the generations that were played are logged.
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
        """Tell again what is logged, then play the generations that are missing."""
        records, judged = self.log.read(), self.selection.read()
        for log, lines in ((self.log, records), (self.selection, judged)):
            found = (record.get("made_by") for record in lines)
            require_made_by(log.path, found, self.options.made_by)
        selected = {record["generation"] for record in judged}
        total = self.options.total_steps or self.options.generations
        done = sum(self._counted(record["steps"]) for record in records)
        unit = "steps" if self.options.total_steps else "generations"
        with Progress("evolving", total, unit, done) as progress:
            self.pulse = _Pulse(progress)
            with open_pool(self.pulse) as pool:
                self.tracker.rewind(len(records))
                for record in records:
                    self._again(pool, record, selected)
                while not self._over:
                    before = self.steps
                    candidates, scores = self._generation(pool)
                    self._select_if_due(pool, candidates, scores, selected)
                    progress.advance(self._counted(self.steps - before))

    def result(self) -> EvolveResult:
        """The best by the selection seeds, and what it took."""
        best = max(self.selection.read(), key=lambda record: float(record["score"]))
        return EvolveResult(
            np.asarray(best["parameters"], np.float32),
            float(best["score"]),
            self.search.generation,
            self.steps,
            self.steps / max(self.seconds, 1e-9),
        )

    def _counted(self, steps: int) -> int:
        """How far a generation of so many steps brings the search: through its budget, if any."""
        return steps if self.options.total_steps else 1

    @property
    def _over(self) -> bool:
        """Whether the last generation, or the one that used up the budget, has been played."""
        options = self.options
        spent = options.total_steps is not None and self.steps >= options.total_steps
        return spent or self.search.generation >= options.generations

    def _again(self, pool: Pool[World], record: dict[str, Any], selected: set[int]) -> None:
        """Ask and tell what a generation's record holds; judge it, if that was not done."""
        candidates, scores = self.search.ask(), np.asarray(record["fitness"])
        self.steps += record["steps"]
        self.seconds += record["seconds"]
        self.episodes = record["next_episodes"]
        self._tell(scores)
        self._select_if_due(pool, candidates, scores, selected)

    def _generation(self, pool: Pool[World]) -> tuple[np.ndarray, np.ndarray]:
        """Ask, play, tell and log; the candidates and their fitness."""
        number, options = self.search.generation, self.options
        self.pulse.begin(f"generation {number + 1}")
        candidates = self.search.ask()
        drawn = seeds.draw(Purpose.TRAINING, options.seed, number, count=round(self.episodes))
        began = time.monotonic()
        outcome = fitness(
            pool,
            self.subspace.controllers(candidates),
            drawn,
            self._num_envs(len(candidates) * len(drawn)),
            options.max_steps,
            self.spec,
            options.stall_steps,
        )
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
        """Learn from a generation; where step sizes are to fall, they fall with the budget left."""
        self.search.tell(scores)
        options = self.options
        if options.final_sigma is not None and options.total_steps is not None:
            spent = min(1.0, self.steps / options.total_steps)
            self.search.set_sigma(options.sigma * (options.final_sigma / options.sigma) ** spent)

    def _allocate(self, returns: np.ndarray) -> None:
        """Move towards as many episodes as it now takes to tell the candidates apart."""
        first = self.options.first_episodes
        if first is not None:
            wanted = wanted_episodes(returns, RELIABILITY)
            change = np.clip(wanted / self.episodes, 1 / GROWTH, GROWTH)
            self.episodes = float(np.clip(self.episodes * change, first, self.options.episodes))

    def _select_if_due(
        self,
        pool: Pool[World],
        candidates: np.ndarray,
        fitness_told: np.ndarray,
        selected: set[int],
    ) -> None:
        """Play the mean and the generation's best on the selection seeds, and log the better."""
        number, options = self.search.generation - 1, self.options
        due = self._over or (number + 1) % options.eval_interval == 0
        if number in selected or not due:
            return
        self.pulse.begin(f"selection after generation {number + 1}")
        finalists = self.subspace.controllers(
            np.stack([self.search.mean, candidates[int(fitness_told.argmax())]])
        )
        drawn = seeds.draw(Purpose.SELECTION, options.seed, count=options.eval_episodes)
        num_envs = self._num_envs(len(finalists) * len(drawn))
        outcome = fitness(pool, finalists, drawn, num_envs, options.max_steps, self.spec)
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
        """Environments of an evaluation batch, of so many episodes in all."""
        fewest, most = self.options.num_envs
        return min(most, max(fewest, episodes // 4))


class _Pulse:
    """Shows that a generation is moving, which may take minutes."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self.begin("")

    def begin(self, what: str) -> None:
        """Count from here on what is played of this."""
        self.what, self.steps, self.began = what, 0, time.monotonic()

    def __call__(self, steps: int) -> None:
        self.steps += steps
        rate = self.steps / max(time.monotonic() - self.began, 1e-9)
        self.progress.advance(0, f"{self.what}: {self.steps:,} steps, {rate:,.0f} a second")
