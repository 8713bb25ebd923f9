"""Options and results of a search by CMA-ES."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from worldmodels.worlds.rollout import Outcome


@dataclass(frozen=True)
class EvolveOptions:
    """Options of `evolve`.

    Args:
        generations: at most.
        total_steps: steps of episodes (actions) in training after which no generation begins; None
            for no limit.
        sigma: initial step size.
        final_sigma: step size at the end of the budget, reached by exponential decay over the steps
            taken; None for the step size that CMA-ES adapts.
        episodes: E, per candidate and generation, at most.
        first_episodes: E of the first generation; then E is adapted by `wanted_episodes`. None for
            `episodes` in every generation.
        max_steps: time limit of an episode in steps.
        stall_steps: see `worldmodels.worlds.rollout.rollout`; never used on selection seeds.
        termination_penalty: subtracted from the return of an episode that terminates.
        eval_interval: generations between two evaluations on the selection seeds.
        eval_episodes: episodes of each finalist in such an evaluation.
        num_envs: least and largest number of environments in one job; within them a quarter of a
            generation, which gives several cores work and does not depend on the number of workers.
        overlap: begin each generation before the one before ends.
        seed: of the episodes.
        made_by: hash of configuration and inputs; logs with another one are refused.
        temperatures: of the learned model in the first generation, and at the end of the budget, by
            linear change over the steps taken, or the generations without `total_steps`; None for
            that of the world, which evaluations on the selection seeds have in any case.
        recorded_best: largest return of a recorded episode, which a mean return in the learned
            model is compared with; None where it is not.
        exploitation_patience: evaluations in a row above it after which the search stops; None for
            no stop.
        intrinsic: name of the reward that returns are sums of, where it is not the task's.
        frame_skip: steps of the simulator for each step of an episode, of which trackers are told;
            1 in the learned model, whose steps are counted as they are.
    """

    generations: int
    total_steps: int | None
    sigma: float
    final_sigma: float | None
    episodes: int
    first_episodes: int | None
    max_steps: int
    stall_steps: int | None
    termination_penalty: float
    eval_interval: int
    eval_episodes: int
    num_envs: tuple[int, int]
    overlap: bool
    seed: int
    made_by: str = ""
    temperatures: tuple[float, float] | None = None
    recorded_best: float | None = None
    exploitation_patience: int | None = None
    intrinsic: str | None = None
    frame_skip: int = 1

    def objective(self, outcome: Outcome) -> np.ndarray:
        """What the search maximises, of each episode (P, E): its return, less the penalty."""
        penalised: np.ndarray = outcome.returns - self.termination_penalty * outcome.terminated
        return penalised


@dataclass(frozen=True)
class EvolveResult:
    """The results of a search.

    Args:
        parameters: of the controller with the highest mean objective on the selection seeds,
            (parameters,) float32; with `exploitation_patience`, of those whose mean return is below
            `recorded_best`, if there are any.
        score: mean return on the selection seeds.
        generations: number of generations.
        steps: of episodes in training, without those on selection seeds.
        throughput: of training, steps per second.
        exploitation: the first generation, from 1, with a mean return above `recorded_best` on the
            selection seeds; None where there is none.
    """

    parameters: np.ndarray
    score: float
    generations: int
    steps: int
    throughput: float
    exploitation: int | None
