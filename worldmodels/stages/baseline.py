"""Stage ``baseline``: a model-free algorithm of Stable-Baselines3, to compare with.

It trains where a controller would (``controller.world``): in the environment on frames, in the
learned model on the controller's features. The stage ``evaluate`` scores it as it scores agents.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from gymnasium.vector import VectorEnv

from worldmodels import extras, seeds
from worldmodels.agents.model_files import load_members
from worldmodels.baselines.actions import Actions
from worldmodels.config.choices import Algorithm, WorldKind
from worldmodels.config.policies import BaselineConfig
from worldmodels.envs.action_spec import DiscreteActions
from worldmodels.envs.engines import make_vector_env
from worldmodels.errors import ConfigError
from worldmodels.runs.integrity import fingerprint_arrays
from worldmodels.runs.stage_folder import StageFolder
from worldmodels.runs.tracking import say
from worldmodels.stages.agent_parts import sampling_rule, starts_of
from worldmodels.stages.context import Context
from worldmodels.stages.controller import agent_config, dream_spec
from worldmodels.stages.inputs import check_features, check_latents
from worldmodels.system.cores import available_cores
from worldmodels.training import cpu
from worldmodels.worlds.collect import PolicyEpisodes
from worldmodels.worlds.dream_env import DreamVectorEnv
from worldmodels.worlds.members import check_rule
from worldmodels.worlds.rollout import Outcome
from worldmodels.worlds.specs import DreamWorldSpec, RealWorldSpec

if TYPE_CHECKING:  # Stable-Baselines3 is optional
    from worldmodels.baselines.algorithms import PolicySpec
    from worldmodels.baselines.policy import BaselinePolicy
    from worldmodels.baselines.train import TrainOptions

POLICY = "policy.safetensors"
_THREADS = 1
"""Of PyTorch on a CPU. Rounding depends on their number, so the machine does not choose it; two
that share a core wait for each other in each convolution in bfloat16, for 20 times its time."""


@dataclass(frozen=True)
class _World:
    """Where a baseline trains.

    Args:
        spec: of the world, as workers build it for evaluations.
        max_steps: time limit of an episode.
        features: number of them; None where it observes frames.
    """

    spec: RealWorldSpec | DreamWorldSpec
    max_steps: int
    features: int | None


def run(context: Context) -> None:
    """Train a baseline; the best policy on the selection seeds is kept."""
    extras.require_import("stage=baseline", "stable_baselines3")
    config, controller = context.config.baseline, context.config.controller
    actions = context.runtime.actions
    _check_actions(context, config.algorithm)
    content: dict[str, Any] = {"baseline": config}
    inputs: dict[str, str] = {}
    if controller.world is WorldKind.dream:
        inputs = context.inputs.models().fingerprints
        content |= {"controller": controller, "env.actions": asdict(actions)}
        content["env.frame_skip"] = context.config.env.frame_skip
    else:
        content |= context.runtime.env_content(context.runtime.env_spec())
    with context.begin("baseline", inputs, (), **content) as folder:
        if not folder.complete:
            _train(context, folder)
        # Also those of a command that was killed right here. Only a training reads them.
        for segment in folder.path.glob("segment-*"):
            shutil.rmtree(segment, ignore_errors=True)


def _check_actions(context: Context, algorithm: Algorithm) -> None:
    """Raise `ConfigError` for an algorithm that cannot choose the environment's actions."""
    discrete = isinstance(context.runtime.actions, DiscreteActions)
    env = context.config.env
    if algorithm is Algorithm.dqn and not discrete:
        remedy = "choose ppo or sac"
        if env.id == "CarRacing-v3":
            remedy += ", or env.kwargs={continuous: false}"
        raise ConfigError(f"baseline.algorithm=dqn: {env.id} has continuous actions; {remedy}")
    if algorithm is Algorithm.sac and discrete:
        raise ConfigError(
            f"baseline.algorithm=sac: {env.id} has discrete actions; choose ppo or dqn"
        )


def policy_spec(
    context: Context, config: Mapping[str, Any], features: int | None, bfloat16: bool
) -> PolicySpec:
    """The network of a baseline.

    Args:
        context: of the command, with the environment.
        config: the keys ``baseline.*`` of the stage, as its manifest has them.
        features: that it observes; None for frames.
        bfloat16: whether frames are encoded in that.
    """
    from worldmodels.baselines.algorithms import PolicySpec

    env = context.config.env
    return PolicySpec(
        config["baseline.algorithm"],
        Actions(context.runtime.actions),
        config["baseline.frame_stack"] if features is None else None,
        env.size if features is None else features,
        config["baseline.options"].get("policy_kwargs", {}),
        bfloat16,
    )


def _train(context: Context, folder: StageFolder) -> None:
    from worldmodels.baselines.train import train

    world = _world(context, folder.path)
    bfloat16 = context.runtime.bfloat16
    spec = policy_spec(context, folder.record["config"], world.features, bfloat16)

    def make_envs(seeds_of: Any) -> Any:
        from worldmodels.baselines.vec_env import SeededVecEnv

        return SeededVecEnv(_envs(context, world), spec.actions, seeds_of, spec.frame_stack)

    def evaluate(policy: BaselinePolicy) -> Outcome:
        return _evaluate(context, world, policy)

    with _own_threads(), context.tracker(folder) as tracker:
        options = _options(context, folder.record["made_by"])
        result = train(spec, make_envs, evaluate, folder.path, options, tracker)
    folder.finish(
        fingerprint_arrays(result.parameters),
        {"steps/s": result.throughput},
        {
            "selection_mean": result.score,
            "world": context.config.controller.world.name,
            "algorithm": spec.algorithm,
            "steps": result.steps,
        },
        [POLICY],
    )
    say(
        f"baseline: {spec.algorithm}, {result.steps:,} steps in the"
        f" {context.config.controller.world.name} world, mean {result.score:.1f} on selection seeds"
        f" ({result.throughput:,.0f} steps/s)"
    )


@contextmanager
def _own_threads() -> Iterator[None]:
    """So many threads as a baseline has, whatever the machine has; afterwards as many as before,
    for the rounding of what this process trains next depends on their number."""
    before = torch.get_num_threads()
    cpu.tune(_THREADS)
    torch.set_num_threads(_THREADS)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _options(context: Context, made_by: str) -> TrainOptions:
    from worldmodels.baselines.train import TrainOptions

    config = context.config.baseline
    options = {key: value for key, value in config.options.items() if key != "policy_kwargs"}
    return TrainOptions(
        total_steps=config.total_steps,
        checkpoint_steps=config.checkpoint_steps,
        learning_rate=_learning_rate(config),
        normalise_reward=config.normalise_reward,
        options=options,
        seed=context.config.seed,
        device=context.runtime.device,
        made_by=made_by,
    )


def _learning_rate(config: BaselineConfig) -> Callable[[float], float] | None:
    """Share of the steps that remains -> learning rate; None for that of Stable-Baselines3."""
    first, last = config.learning_rate, config.final_learning_rate
    if first is None:
        return None
    final = first if last is None else last
    return lambda remaining: final + (first - final) * remaining


def _world(context: Context, folder: Path) -> _World:
    """Where the baseline trains; `folder` receives what the learned model needs beside itself."""
    config = context.config.controller
    if config.world is WorldKind.real:
        limit = context.runtime.env_spec().max_steps
        return _World(context.runtime.real(None), limit, None)
    models, features = context.inputs.models(), agent_config(context).features
    members = load_members(models.dynamics)
    dynamics = members[0]
    check_features(dynamics, config.features)
    check_latents(dynamics, features)
    check_rule("controller.", sampling_rule(context.config), members)
    spec = dream_spec(
        context, models.dynamics, features, starts_of(context, folder, models, dynamics)
    )
    return _World(spec, config.max_steps, features.size(dynamics.latent_size, dynamics))


def _envs(context: Context, world: _World) -> VectorEnv[Any, Any, Any]:
    """The environments of a segment of the training."""
    count = context.config.baseline.num_envs
    if isinstance(world.spec, RealWorldSpec):
        return make_vector_env(world.spec.env, count, available_cores())
    bounds = context.runtime.controls
    low, high = (np.array(bound, np.float32) for bound in (bounds.low, bounds.high))
    return DreamVectorEnv(world.spec.build(), count, low, high, world.max_steps)


def _evaluate(context: Context, world: _World, policy: BaselinePolicy) -> Outcome:
    """The episodes of the selection seeds."""
    config = context.config.baseline
    drawn = seeds.draw(seeds.Purpose.SELECTION, context.config.seed, count=config.eval_episodes)
    size = config.num_envs
    jobs = [
        PolicyEpisodes(tuple(drawn[i : i + size]), world.max_steps, policy)
        for i in range(0, len(drawn), size)
    ]
    with context.runtime.pool(world.spec, jobs=len(jobs)) as pool:
        return Outcome.concatenate(pool.map(jobs))
