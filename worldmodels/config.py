"""The schema of ``conf/``: every key, its type and what it means.

Hydra composes the YAML files over these dataclasses, so a mistyped key or a value of the wrong
type is an error that names the key.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from difflib import get_close_matches
from enum import Enum
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import II, OmegaConf


class Stage(Enum):
    """What one command does."""

    bootstrap = "bootstrap"
    rollouts = "rollouts"
    vae = "vae"
    rnn = "rnn"
    controller = "controller"
    evaluate = "evaluate"
    report = "report"
    inspect = "inspect"
    all = "all"
    iterate = "iterate"
    doctor = "doctor"


class Device(Enum):
    """Where the models run."""

    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"
    mps = "mps"


class Display(Enum):
    """How an engine that draws to a screen gets one."""

    auto = "auto"
    xvfb = "xvfb"
    forward = "forward"
    none = "none"


class Engine(Enum):
    """Which simulator steps the environment."""

    auto = "auto"
    native = "native"
    gymnasium = "gymnasium"
    envpool = "envpool"


class ActionSource(Enum):
    """Who drives while data is collected."""

    brownian = "brownian"
    uniform = "uniform"
    sticky_brownian = "sticky_brownian"
    sticky_uniform = "sticky_uniform"
    persistent_uniform = "persistent_uniform"
    controller = "controller"


class OnCorrupt(Enum):
    """What to do about a damaged shard."""

    refuse = "refuse"
    skip = "skip"


class WorldKind(Enum):
    """Where the controller is trained."""

    real = "real"
    dream = "dream"


class Features(Enum):
    """What the controller sees: the latent alone, with the RNN's hidden state, or with its cell and
    hidden state."""

    z = "z"
    zh = "zh"
    zch = "zch"


class LatentChoice(Enum):
    """Whether z is drawn from the posterior or is its mean."""

    sampled = "sampled"
    mean = "mean"


class HiddenChoice(Enum):
    """Which hidden state goes with z_t: h_t, which has seen z_{t-1}, or one that has seen z_t."""

    before = "before"
    after = "after"


class Precision(Enum):
    """Arithmetic of the networks; auto is bfloat16 where the hardware has it."""

    auto = "auto"
    float32 = "float32"
    bfloat16 = "bfloat16"


@dataclass
class EnvConfig:
    """The environment and how its frames and actions are shaped."""

    name: str = "carracing"  # what its runs are called unless run= says otherwise
    id: str = "CarRacing-v3"
    engine: Engine = Engine.auto
    max_steps: int = 1000  # time limit of an episode
    crop_rows: int | None = 84  # rows kept from the top: the instrument bar is below
    size: int = 64  # side of the square frames that the models see
    num_envs: int = 16  # episodes in one batch; changing it changes rounding, not meaning
    needs_display: bool = False  # it opens a window; display=auto starts Xvfb where there is none
    squash: list[str] | None = None  # of each action; null: as its kind and its bounds ask for
    action_bins: list[int] | None = None  # of a choice: what the thirds of one number in [-1, 1] do
    kwargs: dict[str, Any] = field(default_factory=dict)  # of gymnasium.make


@dataclass
class RolloutsConfig:
    """Recorded episodes."""

    episodes: int = 10_000
    max_steps: int = II("env.max_steps")  # shorter sees more episodes for the same cost
    policy: ActionSource = ActionSource.brownian
    noise: float = 0.0  # standard deviation added to a controller's parameters, anew an episode
    ez_greedy_epsilon: float = (
        0.0  # chance a step that a controller's hand slips, for 1 to 30 random steps
    )
    on_corrupt: OnCorrupt = OnCorrupt.refuse


@dataclass
class VAEConfig:
    """The encoder (paper, appendix A.1)."""

    encoder: str = "conv_vae"  # registered name of its class
    options: dict[str, Any] = field(default_factory=dict)  # of a class that another package adds
    latent_size: int = 32
    epochs: int = 10
    batch_size: int = 100
    learning_rate: float = 1e-4
    final_learning_rate: float = 1e-4  # reached by exponential decay; equal is constant
    kl_tolerance: float = 0.5  # free nats per latent dimension, applied to their sum
    validation_fraction: float = 0.05


@dataclass
class RNNConfig:
    """The dynamics model (paper, appendix A.2)."""

    model: str = "mdn_rnn"  # registered name of its class
    options: dict[str, Any] = field(default_factory=dict)  # of a class that another package adds
    hidden_size: int = 256
    mixtures: int = 5
    shared_mixture: bool = False  # all dimensions of z share one mixture, instead of one for each
    latent: LatentChoice = LatentChoice.sampled  # what it learns to predict
    epochs: int = 40
    batch_size: int = 100  # episodes side by side
    sequence_length: int = 0  # steps of back-propagation; 0 is whole episodes
    learning_rate: float = 1e-3
    final_learning_rate: float = 1e-3  # reached by exponential decay; equal is constant
    gradient_clip: float = 1.0  # elementwise, as the paper's code clips
    is_first: bool = False  # a further input is 1 in the first step of an episode
    reward_weight: float = 0.1  # 0: not predicted; a dream's return is then the steps survived
    termination_weight: float = 1.0
    termination_pos_weight: float = 1.0  # of a step that ends an episode, in that cross entropy
    validation_fraction: float = 0.05
    baselines: bool = True  # train a single-Gaussian head for the table of likelihoods


@dataclass
class ControllerConfig:
    """C, a linear policy evolved by CMA-ES (paper, appendix A.3)."""

    world: WorldKind = WorldKind.real
    population: int = 64
    episodes: int = 16  # for each candidate and generation, at most
    first_episodes: int | None = None  # begin with so few, more as candidates come close
    stall_steps: int | None = None  # steps without a new highest return that end a training episode
    generations: int = 1800
    total_steps: int | None = None  # steps played in training after which no generation begins
    sigma: float = 0.1
    final_sigma: float | None = None  # reached when the budget is used up; null: CMA-ES's own steps
    diagonal: bool = False  # a variance for each parameter instead of a covariance matrix
    pca_components: int | None = None  # search along so many principal components of the features
    max_steps: int = II("env.max_steps")
    features: Features = Features.zh
    latent: LatentChoice = LatentChoice.sampled
    hidden: HiddenChoice = HiddenChoice.before
    bias: bool = True
    hidden_units: int = 0  # of a layer with tanh; the paper's has none, and compares with 40
    temperature: float = 1.0  # of the dream
    dream_num_envs: int | None = None  # dreams in one batch; null: 64 to 256 on a CPU, all on a GPU
    eval_interval: int = 25  # generations between two evaluations on the selection seeds
    eval_episodes: int = 64


@dataclass
class EvaluateConfig:
    """The judge: Gymnasium's own environment, on seeds that anyone can repeat."""

    engine: Engine = Engine.gymnasium  # another is sooner done, and the report says so
    episodes: int = 100
    first_seed: int = 0
    video: bool = True  # film the median episode, and keep some for the report to dream again


@dataclass
class IterateConfig:
    """The loop of the paper's section 5."""

    rounds: int = 2
    noise: float = 0.1  # on the parameters of the controller that collects from round two on


@dataclass
class TrainerConfig:
    """How networks are trained; none of it but the precision changes what is learned."""

    precision: Precision = Precision.auto
    checkpoint_seconds: float = 30.0
    log_every: int = 20  # steps


@dataclass
class WorkersConfig:
    """Processes that play episodes. Their number never changes a result."""

    processes: int | None = None  # null: one a core; 0: in this process
    timeout: float = 120.0  # seconds without a sign of life after which a worker is replaced


@dataclass
class LoggerConfig:
    """Metrics beyond the CSV file."""

    name: str = "csv"  # registered name of a tracker; csv is none
    options: dict[str, Any] = field(default_factory=dict)  # of a tracker of another package
    project: str = "worldmodels"
    mode: str = "offline"  # of W&B: offline needs no account


@dataclass
class Config:
    """One command."""

    stage: Stage = Stage.all
    run: str = "${env.name}"
    base: str | None = None  # a run, or an agent's folder, which serves where this run has nothing
    data: str = "data"  # the folder of all runs
    seed: int = 1
    device: Device = Device.auto  # cuda where there is a GPU for it, else cpu; mps only by name
    display: Display = Display.auto
    model: str | None = None  # folder of a trained agent for evaluate
    overwrite: bool = False  # make the stage's artifact again; the old one stays until that is done
    debug: bool = False  # show tracebacks
    bootstrap: dict[str, Any] = field(
        default_factory=dict
    )  # where a run before differs; empty is none
    env: EnvConfig = field(default_factory=EnvConfig)
    rollouts: RolloutsConfig = field(default_factory=RolloutsConfig)
    vae: VAEConfig = field(default_factory=VAEConfig)
    rnn: RNNConfig = field(default_factory=RNNConfig)
    controller: ControllerConfig = field(default_factory=ControllerConfig)
    evaluate: EvaluateConfig = field(default_factory=EvaluateConfig)
    iterate: IterateConfig = field(default_factory=IterateConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    workers: WorkersConfig = field(default_factory=WorkersConfig)
    logger: LoggerConfig = field(default_factory=LoggerConfig)


def register() -> None:
    """Make the schema known to Hydra as ``schema``."""
    ConfigStore.instance().store(name="schema", node=Config)


def changed(config: Config, overrides: Mapping[str, Any]) -> Config:
    """`config` with other values, as nested mappings; raises OmegaConf's errors, naming the key."""
    merged = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(config), dict(overrides)))
    assert isinstance(merged, Config)
    return merged


def bootstrap_config(config: Config) -> Config:
    """The configuration of the shorter run before a run that has one."""
    shorter = changed(config, config.bootstrap)
    shorter.bootstrap = {}
    return shorter


def parts(config: Config) -> Iterator[Config]:
    """What the stages of one command run with: its own configuration, and that of its bootstrap
    run."""
    yield config
    if config.bootstrap and config.stage in (Stage.bootstrap, Stage.all, Stage.iterate):
        yield bootstrap_config(config)


RENAMED = {
    "rnn.restart": "rnn.is_first",
    "rnn.death_weight": "rnn.termination_pos_weight",
}
"""Old key -> the key that took its place; also in CHANGELOG.md."""


def unknown(key: str) -> str:
    """What to say of a key that the schema does not have: its new name, or one that is alike."""
    if key in RENAMED:
        return f"{key}: renamed; use {RENAMED[key]}"
    keys = list(flat(**vars(Config())))
    meant = [known for known in keys if known.split(".")[-1] == key.split(".")[-1]]
    meant = meant or get_close_matches(key, keys, n=2)
    perhaps = f", perhaps {' or '.join(meant)}" if meant else ""
    return f"{key}: no such key{perhaps}; --help has all"


def flat(**groups: Any) -> dict[str, Any]:
    """Flatten configuration groups (or plain values) to ``{"vae.latent_size": 32, ...}``."""
    pairs: dict[str, Any] = {}
    for name, group in groups.items():
        if hasattr(group, "__dataclass_fields__"):
            pairs |= {f"{name}.{key}": plain(value) for key, value in asdict(group).items()}
        else:
            pairs[name] = plain(group)
    return pairs


def plain(value: Any) -> Any:
    """Replace enums in `value` by their names, so that it can be written as JSON."""
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value
