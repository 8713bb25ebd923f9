"""CMA-ES by pycma's ask and tell, resumable from a log of fitness values.

pycma saves its state by pickling. Here no state is saved: candidates are a function of the seed,
the generation and the fitness values told before, so a search is restored exactly by repeating ask
and tell with the fitness values of the log.

Candidates of the next generation can be asked for before the fitness of the last ones is told; they
come from an older distribution then.
"""

from __future__ import annotations

import warnings
from collections import deque

import cma
import numpy as np
from threadpoolctl import threadpool_limits


class Search:
    """CMA-ES (Hansen and Ostermeier 2001) that maximises, started at zero as in the paper's code.

    Args:
        dimension: number of parameters of a candidate.
        population: P, candidates per generation.
        sigma: initial step size.
        seed: of the candidates.
        mean: initial mean (dimension,) instead of zero.
        diagonal: learn a diagonal covariance matrix instead of a full one (sep-CMA-ES, Ros and
            Hansen 2008), which takes fewer generations.
    """

    def __init__(
        self,
        dimension: int,
        population: int,
        sigma: float,
        seed: int,
        mean: np.ndarray | None = None,
        diagonal: bool = False,
    ) -> None:
        self.generation = 0
        """Generations that were told."""
        self.asked = 0
        """Generations that were asked for."""
        self._seed = seed
        self._waiting: deque[list[np.ndarray]] = deque()
        """The candidates of generations that are not told."""
        options = {
            "popsize": population,
            "CMA_diagonal": diagonal,
            # Our own numbers in place of the process-wide ones that pycma would seed.
            "seed": np.nan,
            "randn": self._normal,
            "verbose": -9,
            "verb_log": 0,
        }
        start = np.zeros(dimension) if mean is None else np.asarray(mean, np.float64)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._strategy = cma.CMAEvolutionStrategy(start, sigma, options)

    @property
    def mean(self) -> np.ndarray:
        """The mean of the search distribution, (dimension,) float32."""
        return np.asarray(self._strategy.mean, np.float32)

    @property
    def sigma(self) -> float:
        """The overall step size."""
        return float(self._strategy.sigma)

    def set_sigma(self, sigma: float) -> None:
        """Replace the step size that CMA-ES has adapted by `sigma`."""
        self._strategy.sigma = sigma

    def ask(self) -> np.ndarray:
        """The candidates of the next generation, (P, dimension) float32."""
        # One thread: the eigendecomposition's rounding may depend on how many share it.
        sequence = np.random.SeedSequence([self._seed, self.asked])
        self._generator = np.random.Generator(np.random.Philox(sequence))
        with threadpool_limits(1):
            candidates = self._strategy.ask()
        self.asked += 1
        self._waiting.append(candidates)
        return np.asarray(candidates, np.float32)

    def tell(self, fitness: np.ndarray) -> None:
        """Update the search distribution; every call belongs to an `ask` before it.

        Args:
            fitness: of the candidates that were asked for first and not told yet, (P,); higher is
                better.
        """
        candidates = self._waiting.popleft()
        with threadpool_limits(1), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._strategy.tell(candidates, list(-np.asarray(fitness, np.float64)))
        self.generation += 1

    def _normal(self, *shape: int) -> np.ndarray:
        return self._generator.standard_normal(shape)
