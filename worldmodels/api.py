"""The Python interface, which ``import worldmodels`` offers: trained agents, environments, data."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from numbers import Integral
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from gymnasium.vector import VectorEnv

from worldmodels import seeds
from worldmodels.agents.description import AgentConfig
from worldmodels.agents.folder import read_agent
from worldmodels.agents.hub import require_agent
from worldmodels.agents.starts_file import STARTS
from worldmodels.config import shipped
from worldmodels.config.choices import Engine, MemberSampling, StartChoice
from worldmodels.config.environments import env_spec, find_env
from worldmodels.config.limits import LIMITS
from worldmodels.config.sections import EnvConfig
from worldmodels.data.episodes import EpisodeSet
from worldmodels.data.shards import Episode
from worldmodels.envs.action_spec import DiscreteActions
from worldmodels.envs.engines import ENGINES, make_vector_env, prepare
from worldmodels.envs.observation import ObservationSpec
from worldmodels.errors import ConfigError, DataError
from worldmodels.evolution.fitness import EpisodeSpec, evaluation_num_envs, fitness
from worldmodels.policy import AgentPolicy
from worldmodels.reporting.scores import summarise
from worldmodels.runs.integrity import Listed, listed
from worldmodels.runs.manifests import MANIFEST
from worldmodels.system.devices import choose_device, has_bfloat16
from worldmodels.workers.local import LocalPool
from worldmodels.worlds.dream_env import DreamVectorEnv
from worldmodels.worlds.members import SamplingRule, check_rule
from worldmodels.worlds.specs import DreamWorldSpec, RealWorldSpec

_Choice = TypeVar("_Choice", bound=Enum)
_WORKER_TIMEOUT = 120.0
"""Seconds without progress after which a worker is replaced; the default of ``workers.timeout``."""


@dataclass(frozen=True)
class Evaluation:
    """The returns of an agent, one episode for each seed.

    Args:
        returns: (E,) float64, sums of rewards.
        lengths: (E,) int64, steps.
        terminated: (E,) bool, False where the time limit ended the episode.
        seeds: (E,) int64, of the environment.
        mean: of the returns.
        std: sample standard deviation of the returns; 0 for one episode.
        interval: 95 % bootstrap confidence interval of the mean; the least and the greatest return
            where there are fewer than three episodes or all returns are equal.
    """

    returns: np.ndarray
    lengths: np.ndarray
    terminated: np.ndarray
    seeds: np.ndarray
    mean: float
    std: float
    interval: tuple[float, float]


def load_agent(name: str | Path, device: str = "cpu", seed: int = 0) -> AgentPolicy:
    """Read a trained agent, to act in its environment.

    Args:
        name: folder of an agent, or of a stage ``controller``; an agent that is shipped, as
            ``pretrained/carracing``; or one on the Hugging Face Hub, ``hf://owner/name@revision``,
            where without a revision the newest commit is taken.
        device: of the models: "cpu", "cuda", "mps", or "auto" for a GPU where there is one.
        seed: of the random draws of an agent that samples its latents, at least 0.

    Raises:
        ConfigError: there is no agent, or no such device, the seed is out of range, or the Hub
            cannot be reached.
        ArtifactError: a file of the agent is missing or damaged, or does not fit the others.
    """
    _check_whole("seed", seed, 0)
    folder = require_agent("agent", str(name))
    return AgentPolicy(read_agent(folder), folder, choose_device(device), seed)


def evaluate(
    agent: AgentPolicy | str | Path,
    episodes: int = 100,
    first_seed: int = 0,
    engine: str = "gymnasium",
    processes: int = 0,
    **settings: Any,
) -> Evaluation:
    """Play episodes with a trained agent, as the stage ``evaluate`` does.

    The environment is that of the agent, configured as its group of ``conf/env/`` does. Where no
    group configures it, or more than one, it is as `settings` say, among them ``max_steps``.

    Args:
        agent: what `load_agent` takes or returns. The state of a policy is neither used nor
            changed.
        episodes: how many, at least 1.
        first_seed: of the first episode; the others follow. All are below 2**28: the seeds beyond
            are those of training.
        engine: "gymnasium", "native", "envpool" or "auto", as ``evaluate.engine`` takes it.
        processes: worker processes; 0 plays in this process. A script that uses more needs
            ``if __name__ == "__main__":``, as with `multiprocessing`. The result is the same.
        settings: keys ``env.*`` in place of the configured ones, as ``max_steps=100``.

    Raises:
        ConfigError: an argument is out of range, the environment cannot be made, its time limit is
            not known, or its frames are of another size or crop than in the agent's training.
        WorkerError: a worker process failed.
    """
    policy = agent if isinstance(agent, AgentPolicy) else load_agent(agent)
    _check_whole("episodes", episodes, 1)
    _check_whole("first_seed", first_seed, 0)
    _check_whole("processes", processes, 0)
    config = _env_of(policy.config, settings)
    _check_frames(config, policy.config.observation)
    spec = env_spec(config, _engine(engine))
    device = str(policy.device)
    prepare(spec, device)
    world_spec = RealWorldSpec(
        env=spec,
        encoder=policy.folder / "vae.safetensors",
        dynamics=policy.folder / "rnn.safetensors",
        features=policy.config.features,
        device=device,
        bfloat16=has_bfloat16(policy.device),
    )
    chosen = seeds.evaluation(first_seed, episodes)
    num_envs = evaluation_num_envs(spec.engine, config.num_envs)
    episode_spec = EpisodeSpec(num_envs, spec.max_steps, policy.config.controller)
    pool = LocalPool(world_spec, processes, _WORKER_TIMEOUT)
    with pool:
        outcome = fitness(pool, policy.parameters[None], chosen, episode_spec)
    returns, lengths, terminated = (part[0] for part in outcome[:3])
    score = summarise("agent", returns, chosen)
    return Evaluation(
        returns, lengths, terminated, np.array(chosen), score.mean, score.std, score.interval
    )


def _check_frames(config: EnvConfig, trained: ObservationSpec) -> None:
    """Raise `ConfigError` for frames that an agent was not trained on."""
    here = ObservationSpec(config.crop_rows, config.size)
    if here != trained:
        raise ConfigError(
            f"the agent was trained with crop_rows={trained.crop_rows} size={trained.size}, not"
            f" crop_rows={here.crop_rows} size={here.size}; leave these settings out"
        )


def make_dream(
    agent: AgentPolicy | str | Path,
    num_envs: int = 1,
    temperature: float = 1.0,
    decoded: bool = False,
    *,
    max_steps: int | None = None,
    device: str = "cpu",
    member_sampling: str = "step",
    pessimism: float = 0.0,
    starts: str = "first",
    sampled_termination: bool = False,
) -> DreamVectorEnv:
    """The learned model of an agent as a Gymnasium vector environment.

    Actions are the controller's vectors, float32 (N, A). An environment that has ended is reset in
    the following step (``NEXT_STEP``).

    Args:
        agent: what `load_agent` takes or returns. Of a policy, the folder is read again.
        num_envs: number of environments N.
        temperature: of the latents' distribution: higher is less certain (paper, section 4).
        decoded: observations are frames that the decoder draws, uint8 (N, H, W, 3), and not the
            controller's features, float32 (N, F).
        max_steps: time limit; None is that of the environment's group of ``conf/env/``.
        device: as `load_agent` takes it.
        member_sampling: of an agent with an ensemble, "step" or "episode", as
            ``controller.member_sampling`` takes it.
        pessimism: standard deviations of the members' rewards that are subtracted from their mean.
        starts: episodes begin at "first" latents of recorded ones, or at any "recorded" moment, if
            the agent was trained so (``controller.starts``).
        sampled_termination: as ``controller.sampled_termination`` takes it.

    Raises:
        ConfigError: there is no agent, no such device, or an argument is out of range.
        ArtifactError: a file of the agent is missing or damaged, or does not fit the others.
    """
    if isinstance(agent, AgentPolicy):
        agent = agent.folder
    folder = require_agent("agent", str(agent))
    trained, chosen = read_agent(folder), choose_device(device)
    config = trained.config
    if max_steps is None:
        max_steps = env_spec(_env_of(config, {})).max_steps
    each_step = _chosen("member_sampling", member_sampling, MemberSampling) is MemberSampling.step
    rule = SamplingRule(each_step, pessimism, sampled_termination, config.frame_skip)
    _check_dream(rule, temperature, num_envs=num_envs, max_steps=max_steps)
    check_rule("", rule, (trained.dynamics, *trained.others))
    begin = _chosen("starts", starts, StartChoice) is StartChoice.recorded
    dynamics, bfloat16 = folder / "rnn.safetensors", has_bfloat16(chosen)
    moments = folder / STARTS if begin else None
    dream = DreamWorldSpec(
        dynamics, temperature, config.features, str(chosen), bfloat16, rule, moments
    )
    controls = config.actions.bounds
    low, high = (np.array(bounds, np.float32) for bounds in (controls.low, controls.high))
    encoder = trained.encoder.to(chosen)
    return DreamVectorEnv(dream.build(), num_envs, low, high, max_steps, encoder, decoded)


def _check_dream(rule: SamplingRule, temperature: float, **numbers: int) -> None:
    """Raise `ConfigError` for arguments of `make_dream` that are out of range."""
    for key, number in numbers.items():
        _check_whole(key, number, 1)
    if rule.pessimism not in LIMITS["controller.pessimism"]:
        raise ConfigError(f"pessimism={rule.pessimism}: choose {LIMITS['controller.pessimism']}")
    if not 0 < temperature < math.inf:
        raise ConfigError(f"temperature={temperature}: choose a finite number above 0")


def _check_whole(key: str, number: int, least: int) -> None:
    """Raise `ConfigError` unless an argument is a whole number, and at least `least`."""
    if not isinstance(number, Integral) or number < least:
        raise ConfigError(f"{key}={number}: choose a whole number of {least} or more")


def _chosen(key: str, name: str, choices: type[_Choice]) -> _Choice:
    """The choice `name`; raises `ConfigError` for another."""
    if name not in choices.__members__:
        raise ConfigError(f"{key}={name}: choose one of {', '.join(choices.__members__)}")
    return choices[name]


def make_env(
    env: str = "carracing",
    num_envs: int = 1,
    engine: str | None = None,
    processes: int = 1,
    **settings: Any,
) -> VectorEnv[Any, Any, Any]:
    """A real environment as the pipeline uses it: small square frames, vectors as actions.

    `reset(seed=s)` begins episode ``s + i`` in environment i. Frames are uint8
    (N, size, size, 3), actions float32 (N, A). An environment that has ended keeps its last frame
    and flags, with reward 0, until the next reset (``DISABLED``).

    Args:
        env: name of a group of ``conf/env/``, or id of a Gymnasium environment.
        num_envs: number of environments N.
        engine: "native", "gymnasium", "envpool" or "auto"; None is the configured one.
        processes: cores to simulate on: threads of the native engine, processes of the others.
        settings: further keys of ``env.*``: max_steps, crop_rows, size, kwargs and others.

    Raises:
        ConfigError: a key or its value cannot be used, or the environment cannot be made.
    """
    _check_whole("num_envs", num_envs, 1)
    _check_whole("processes", processes, 1)
    spec = env_spec(find_env(env, **settings), None if engine is None else _engine(engine))
    return make_vector_env(spec, num_envs, processes)


def load_episodes(*paths: str | Path) -> Iterator[Episode]:
    """The recorded episodes of a run, one after another.

    Args:
        paths: folder of a run or of its stage ``rollouts``; or a folder of ``shard-*.h5``, or
            such files. Files that a manifest lists are compared with it.

    Returns:
        episodes of T steps: ``frames`` uint8 (T + 1, H, W, 3), ``actions`` float32 (T, A),
        ``rewards`` float32 (T,), ``terminated`` and ``truncated`` bool (T,), and ``seed``; their
        timeline is in `worldmodels.data.shards`. At each time one of them is in memory.

    Raises:
        DataError: there are no episodes, or a file is missing or damaged.
        ArtifactError: a manifest is damaged, or a file cannot be read.
    """
    episodes = EpisodeSet.listed([file for path in paths for file in _shards(Path(path))])
    return (episodes.episode(index) for index in range(episodes.num_episodes))


def _shards(path: Path) -> list[Listed]:
    """The shards at a path."""
    if path.suffix == ".h5":
        return [Listed(path)]
    folder = path / "rollouts" if (path / "rollouts").is_dir() else path
    if (folder / MANIFEST).exists():
        return listed(folder, "shard-*.h5")
    shards = [Listed(shard) for shard in sorted(folder.glob("shard-*.h5"))]
    if not shards:
        raise DataError(f"{path}: has no shard-*.h5; give the folder of a run or of its rollouts")
    return shards


def _env_of(config: AgentConfig, settings: dict[str, Any]) -> EnvConfig:
    """The environment that an agent was trained for, with its own observations and actions.

    Raises:
        ConfigError: `settings` have no time limit, and not exactly one group configures it.
    """
    own: dict[str, Any] = {
        "crop_rows": config.observation.crop_rows,
        "size": config.observation.size,
        "frame_skip": config.frame_skip,
    }
    if isinstance(config.actions, DiscreteActions):
        bins = config.actions.action_bins
        own["action_bins"] = None if bins is None else list(bins)
    groups = shipped.groups_of(config.env_id)
    if len(groups) != 1 and "max_steps" not in settings:
        raise ConfigError(
            f"max_steps: the agent's environment {config.env_id} is configured by"
            f" {' and '.join(groups) or 'no group'} of conf/env/; give the time limit of its"
            " training, and to evaluate also kwargs= where it has them"
        )
    name = groups[0] if len(groups) == 1 else config.env_id
    return find_env(name, **{**own, **settings})


def _engine(name: str) -> Engine:
    if name not in ENGINES:
        raise ConfigError(f"engine={name}: choose one of {', '.join(ENGINES)}")
    return Engine[name]
