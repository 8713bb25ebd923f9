"""Stage ``controller``: evolve C with CMA-ES, in the game or in the dream (paper, A.3 and A.4)."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import torch
from threadpoolctl import threadpool_limits

from worldmodels import seeds
from worldmodels.agent import (
    Agent,
    Wiring,
    load_agent,
    load_first_latents,
    load_memory,
    load_vision,
    save_agent,
)
from worldmodels.artifacts import JsonLines, StageFolder, fingerprint_arrays
from worldmodels.config import WorldKind
from worldmodels.data.latents import LatentSet
from worldmodels.errors import ConfigError
from worldmodels.evolution.directions import Directions
from worldmodels.evolution.fitness import fitness, wanted_episodes
from worldmodels.evolution.search import Search
from worldmodels.models.controller import Head
from worldmodels.models.mdnrnn import MDNRNN
from worldmodels.seeds import Purpose
from worldmodels.stages.context import Context
from worldmodels.tracking import Progress, Tracker, say
from worldmodels.training.moments import feature_moments
from worldmodels.workers import Pool
from worldmodels.worlds.recipes import Recipe
from worldmodels.worlds.world import World

RELIABILITY = 0.7
"""Share of the variance of the candidates' scores that is to be their own."""
FEW_DREAMS, MANY_DREAMS = 64, 256
"""Bounds of the dreams in one batch on a CPU: fewer leave its cores waiting for M's weights, more
leave the cache; between them a batch is a quarter of the generation, for several cores."""
GPU_DREAMS = 8192
"""A GPU wants them all at once."""
GROWTH = 1.1
"""How much more or fewer episodes the next generation may have."""


def run(context: Context) -> None:
    """Evolve until the last generation; the best by the selection seeds is the agent."""
    config = context.config.controller
    real = config.world is WorldKind.real
    inputs = context.models().inputs | context.initial_fingerprint("controller")
    world = context.env_content(context.env_spec()) if real else {}
    # Step sizes that fall over the budget belong to that budget.
    falling = config.final_sigma is not None
    growable = () if falling else ("controller.generations", "controller.budget")
    with context.begin("controller", inputs, growable, controller=config, **world) as folder:
        if not folder.complete:
            _evolve(context, folder)


def _check_dreams(memory: MDNRNN, wiring: Wiring) -> None:
    """Raise `ConfigError` where C would see other latents in the game than in the dream."""
    if memory.sampled != wiring.sampled:
        learned, wanted = ("draws", "sampled") if memory.sampled else ("means", "mean")
        raise ConfigError(
            f"controller.latent: M dreams of {learned} (rnn.latent={wanted}), so C has to see the"
            f" same in the game: give controller.latent={wanted}"
        )


def _evolve(context: Context, folder: StageFolder) -> None:
    config = context.config.controller
    evolution = _Evolution(context, folder)
    evolution.run()
    parameters, score = evolution.choose()
    vision, memory = evolution.vision.folded_decoder(), evolution.memory
    # Kept in the numbers they were used in: half the size where those are bfloat16. M is float32 in
    # the game.
    if context.bfloat16:
        vision = vision.to(torch.bfloat16)
        if config.world is WorldKind.dream:
            memory = memory.to(torch.bfloat16)
    agent = Agent(vision, memory, parameters, evolution.wiring)
    save_agent(evolution.agent, agent, evolution.first)
    folder.finish(
        fingerprint_arrays({"controller": parameters}),
        {"steps/s": evolution.throughput},
        {
            "selection_mean": score,
            "world": config.world.name,
            "generations": evolution.search.generation,
            "steps": evolution.steps,
        },
    )
    say(
        f"controller: {evolution.search.generation} generations in the {config.world.name} world,"
        f" mean {score:.1f} on selection seeds ({evolution.throughput:,.0f} steps/s)"
    )


def _kept(path: Path | None, features: int, components: int, head: Head) -> Directions:
    """The leading directions of those in which an agent's C was found.

    Raises:
        ConfigError: there are none, or fewer, or for a C that sees something else.
    """
    mend = "choose controller.components=null, or train V and M in this run"
    if path is None or not path.exists():
        raise ConfigError(f"controller.components={components}: {path} is missing; {mend}")
    kept = Directions.load(path, head)
    if len(kept.axes) != features:
        raise ConfigError(
            f"controller.components: {path} is for {len(kept.axes)} features, this C sees"
            f" {features}; {mend}"
        )
    if kept.axes.shape[1] < min(components, features):
        raise ConfigError(
            f"controller.components={components}: {path} has {kept.axes.shape[1]} directions;"
            f" choose as many or fewer, or {mend.removeprefix('choose ')}"
        )
    return kept.leading(components)


class _Evolution:
    """The search with its log, its workers and its clock."""

    def __init__(self, context: Context, folder: StageFolder) -> None:
        self.context, self.folder = context, folder
        self.config = context.config.controller
        self.wiring = context.wiring()
        self.agent = folder.path / "agent"
        self.models = context.models()
        self.vision = load_vision(self.models.vision)
        self.memory = load_memory(self.models.memory)
        self.first = load_first_latents(self.models.memory)
        if self.config.world is WorldKind.dream:
            _check_dreams(self.memory, self.wiring)
        self.directions = self._directions(
            self.wiring.features(self.vision.latent_size, self.memory.hidden_size)
        )
        self.search = Search(
            self.directions.size,
            self.config.population,
            self.config.sigma,
            context.config.seed,
            self._previous_mean(),
            self.config.diagonal,
        )
        self.log = JsonLines(folder.path / "generations.jsonl")
        self.selection = JsonLines(folder.path / "selection.jsonl")
        self.steps, self.seconds = 0, 0.0
        self.episodes = float(self.config.first_episodes or self.config.episodes)

    @property
    def throughput(self) -> float:
        return self.steps / max(self.seconds, 1e-9)

    def run(self) -> None:
        """Bring the search to where its log ends, then on to the last generation."""
        records = self.log.read()
        selected = {record["generation"] for record in self.selection.read()}
        total = self.config.budget or self.config.generations
        done = sum(self._counted(record["steps"]) for record in records)
        with (
            self.context.tracker(self.folder) as tracker,
            Progress("evolving", total, done) as progress,
            self.context.pool(self._recipe(), _Pulse(progress)) as pool,
        ):
            tracker.rewind(len(records))
            for record in records:
                candidates, scores = self.search.ask(), np.asarray(record["fitness"])
                self.steps += record["steps"]
                self.seconds += record["seconds"]
                self.episodes = record["next_episodes"]
                self._tell(scores)
                self._select_if_due(pool, tracker, candidates, scores, selected)
            while not self._over:
                before = self.steps
                candidates, scores = self._generation(pool, tracker)
                self._select_if_due(pool, tracker, candidates, scores, selected)
                progress.advance(self._counted(self.steps - before))

    def _counted(self, steps: int) -> int:
        """How far a generation of so many steps brings the search: through its budget, if any."""
        return steps if self.config.budget else 1

    @property
    def _over(self) -> bool:
        """Whether the last generation, or the one that used up the budget, has been played."""
        config = self.config
        spent = config.budget is not None and self.steps >= config.budget
        return spent or self.search.generation >= config.generations

    def choose(self) -> tuple[np.ndarray, float]:
        """The parameters with the best mean on the selection seeds, and that mean."""
        best = max(self.selection.read(), key=lambda record: float(record["score"]))
        return np.asarray(best["parameters"], np.float32), float(best["score"])

    def _generation(self, pool: Pool[World], tracker: Tracker) -> tuple[np.ndarray, np.ndarray]:
        """Ask, play, tell and log; the candidates and their fitness."""
        number = self.search.generation
        candidates = self.search.ask()
        drawn = seeds.draw(
            Purpose.TRAINING, self.context.config.seed, number, count=round(self.episodes)
        )
        began = time.monotonic()
        outcome = fitness(
            pool,
            self.directions.controllers(candidates),
            drawn,
            self._lanes(len(candidates) * len(drawn)),
            self.config.max_steps,
            self.wiring,
            self.config.patience,
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
            }
        )
        values = {"mean": scores.mean(), "best": scores.max(), "worst": scores.min()}
        values |= {"sigma": self.search.sigma, "steps": steps, "episodes": len(drawn)}
        tracker.log(number + 1, {f"fitness/{k}": float(v) for k, v in values.items()})
        tracker.flush()
        return candidates, scores

    def _tell(self, scores: np.ndarray) -> None:
        """Learn from a generation; where step sizes are to fall, they fall with the budget left."""
        self.search.tell(scores)
        config = self.config
        if config.final_sigma is not None and config.budget is not None:
            spent = min(1.0, self.steps / config.budget)
            self.search.narrow(config.sigma * (config.final_sigma / config.sigma) ** spent)

    def _allocate(self, returns: np.ndarray) -> None:
        """Move towards as many episodes as it now takes to tell the candidates apart."""
        first = self.config.first_episodes
        if first is not None:
            wanted = wanted_episodes(returns, RELIABILITY)
            change = np.clip(wanted / self.episodes, 1 / GROWTH, GROWTH)
            self.episodes = float(np.clip(self.episodes * change, first, self.config.episodes))

    def _select_if_due(
        self,
        pool: Pool[World],
        tracker: Tracker,
        candidates: np.ndarray,
        fitness_told: np.ndarray,
        selected: set[int],
    ) -> None:
        """Play the mean and the generation's best on the selection seeds, and log the better."""
        number = self.search.generation - 1
        config = self.config
        due = self._over or (number + 1) % config.select_every == 0
        if number in selected or not due:
            return
        finalists = self.directions.controllers(
            np.stack([self.search.mean, candidates[int(fitness_told.argmax())]])
        )
        drawn = seeds.draw(
            Purpose.SELECTION, self.context.config.seed, count=config.select_episodes
        )
        lanes = self._lanes(len(finalists) * len(drawn))
        outcome = fitness(pool, finalists, drawn, lanes, config.max_steps, self.wiring)
        scores = outcome.returns.mean(axis=1)
        better = int(scores.argmax())
        self.selection.append(
            {
                "generation": number,
                "score": float(scores[better]),
                "which": ("mean", "best")[better],
                "parameters": finalists[better].tolist(),
            }
        )
        tracker.log(
            number + 1, {"selection/mean": float(scores[0]), "selection/best": float(scores[1])}
        )
        tracker.flush()
        say(
            f"controller: generation {number + 1}: {scores[0]:.1f} (mean of the search),"
            f" {scores[1]:.1f} (its best candidate) on {len(drawn)} selection seeds"
        )

    def _directions(self, features: int) -> Directions:
        """Where the search moves: kept with it, for a search that goes on must go on in them."""
        path, head = self.agent / "directions.safetensors", self.wiring.head
        components, models = self.config.components, self.models
        if components is None:
            return Directions(np.zeros(features), np.eye(features), head)
        if not path.exists():
            if models.latents is None:
                found = _kept(models.directions, features, components, head)
            else:
                seen = self.memory if self.wiring.use_hidden else None
                with threadpool_limits(1):  # for the same rounding, however many cores there are
                    moments = feature_moments(LatentSet(models.latents), seen, self.wiring.use_cell)
                    found = Directions.of(*moments, components, head)
            found.save(path)
        return Directions.load(path, head)

    def _previous_mean(self) -> np.ndarray | None:
        """Where the controller of the round before is, and the search goes on."""
        if not self.context.earlier:
            return None
        folder: Path = self.context.earlier[-1].locate("controller") / "agent"
        mean: np.ndarray = self.directions.coordinates(load_agent(folder).parameters[None])[0]
        return mean

    def _lanes(self, episodes: int) -> int:
        """Lanes of a packet, of so many episodes in all; whatever the number of workers."""
        if self.config.world is WorldKind.real:
            return self.context.config.env.lanes
        if self.config.dream_lanes is not None:
            return self.config.dream_lanes
        if self.context.device.type == "cuda":
            return GPU_DREAMS
        return min(MANY_DREAMS, max(FEW_DREAMS, episodes // 4))

    def _recipe(self) -> Recipe:
        if self.config.world is WorldKind.real:
            return self.context.real(None, self.models.vision, self.models.memory, self.wiring)
        return self.context.dream(self.models.memory, self.wiring, self.config.temperature)


class _Pulse:
    """Shows that a generation is moving, which may take minutes."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self.steps, self.began = 0, time.monotonic()

    def __call__(self, steps: int) -> None:
        self.steps += steps
        rate = self.steps / max(time.monotonic() - self.began, 1e-9)
        self.progress.advance(0, note=f"{self.steps:,} steps, {rate:,.0f} a second")
