"""The choices of each key that takes one of several names."""

from __future__ import annotations

from enum import Enum


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
    baseline = "baseline"
    sweep = "sweep"
    vars()["import"] = "import"  # a keyword of Python: Stage["import"] in code
    export = "export"
    play = "play"
    watch = "watch"
    plan = "plan"
    doctor = "doctor"


IMPORT = Stage["import"]
TRAINING = (Stage.bootstrap, Stage.vae, Stage.rnn, Stage.all, Stage.iterate)
"""The stages that train networks."""


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
    """How actions are chosen while episodes are collected."""

    brownian = "brownian"
    uniform = "uniform"
    sticky_brownian = "sticky_brownian"
    sticky_uniform = "sticky_uniform"
    persistent_uniform = "persistent_uniform"
    action_noise = "action_noise"
    controller = "controller"


class OnCorrupt(Enum):
    """What to do about a damaged shard."""

    refuse = "refuse"
    skip = "skip"


class WorldKind(Enum):
    """Where the controller is trained."""

    real = "real"
    dream = "dream"


class Optimizer(Enum):
    """How the controller is trained: by CMA-ES, or by gradients of returns in the learned model
    with a critic."""

    cma_es = "cma_es"
    actor_critic = "actor_critic"


class Objective(Enum):
    """What a search in the learned model maximises: the returns of the task, or those of an
    intrinsic reward, by which a controller explores."""

    reward = "reward"
    disagreement = "disagreement"
    distillation = "distillation"


class Features(Enum):
    """Inputs of the controller: the latent z, z and the dynamics model's hidden state h, or z, the
    cell state c of an LSTM and h."""

    z = "z"
    zh = "zh"
    zch = "zch"


class Algorithm(Enum):
    """Model-free algorithms of Stable-Baselines3."""

    ppo = "ppo"
    dqn = "dqn"
    sac = "sac"


class Target(Enum):
    """The stage that stage=sweep finds values for."""

    vae = "vae"
    rnn = "rnn"
    controller = "controller"
    baseline = "baseline"


class SweepMethod(Enum):
    """How stage=sweep finds values: by trials, or by a population that trains side by side."""

    tpe = "tpe"
    population = "population"


class LatentChoice(Enum):
    """Whether z is sampled from the VAE's posterior or is its mean."""

    sampled = "sampled"
    mean = "mean"


class MemberSampling(Enum):
    """How often a member of an ensemble of dynamics models is drawn."""

    step = "step"
    episode = "episode"


class HiddenChoice(Enum):
    """Which h goes with z_t: that computed from z up to z_{t-1}, or that which includes z_t."""

    previous = "previous"
    updated = "updated"


class StartChoice(Enum):
    """Where episodes in the learned model begin."""

    first = "first"
    recorded = "recorded"


class Precision(Enum):
    """Arithmetic of the networks; auto is bfloat16 where the hardware has it."""

    auto = "auto"
    float32 = "float32"
    bfloat16 = "bfloat16"


class Strategy(Enum):
    """How several processes train one model: auto is ddp for more than one process; ddp joins one
    process to a process group too."""

    auto = "auto"
    ddp = "ddp"


class Backend(Enum):
    """Where the workers are."""

    local = "local"
    ray = "ray"


class LoggerMode(Enum):
    """Modes of W&B."""

    online = "online"
    offline = "offline"
    disabled = "disabled"


class Format(Enum):
    """What stage=export writes and stage=import reads."""

    onnx = "onnx"
    web = "web"
    huggingface = "huggingface"
    minari = "minari"
    lerobot = "lerobot"
    numpy = "numpy"
    videos = "videos"


EXPORTS = (Format.onnx, Format.web, Format.huggingface, Format.minari, Format.lerobot)
IMPORTS = (Format.numpy, Format.videos, Format.minari, Format.lerobot)
"""The formats of the stages export and import."""
