"""The sections of the configuration about environment and models: every key, its type, default,
range and meaning.

Every default is here, in ``policies.py``, ``execution.py`` or `Config`; a file of ``conf/`` has
only what differs from it. Where the paper gives a number, that is the default.

``number(default, least, most)`` is a key that takes a number. The docstring below a key is its
meaning in ``--help`` and docs/configuration.md.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from worldmodels.config.choices import (
    ActionSource,
    Engine,
    LatentChoice,
    OnCorrupt,
)
from worldmodels.config.keys import EPISODE_STEPS, HUGE, MANY, number


@dataclass
class EnvConfig:
    """Environment: frames, actions, episodes."""

    name: str = "carracing"
    """Name of its runs where run= gives none."""
    id: str = "CarRacing-v3"
    """Gymnasium's id; module:id imports the module first."""
    engine: Engine = Engine.auto
    """Simulator: native is this project's CarRacing; auto is native where it can simulate the
    environment, else envpool where it is installed and has the environment and env.kwargs is empty,
    else gymnasium."""
    max_steps: int = number(1000, 1, 100_000, unit="steps")
    """Time limit of an episode, in steps of the simulator."""
    crop_rows: int | None = number(84, 1, 10_000, unit="pixels")
    """Rows of the image that are kept, from the top; null keeps all. With the default of the
    environment, an agent of model= has frames as in its training."""
    size: int = number(64, 8, 512, unit="pixels")
    """Side of the square frames that the models take; an encoder may take one size only."""
    num_envs: int = number(16, 1, 16_384)
    """Episodes in one batch during collection; another number changes rounding only."""
    needs_display: bool = False
    """Whether the environment opens a window; display=auto then starts Xvfb where there is none."""
    squash: list[str] | None = None
    """For each action, the function that bounds the controller's output: tanh [-1, 1], half_tanh
    [0, 1], clipped_tanh [0, 1], or choice for all; null chooses by the action space."""
    action_bins: list[int] | None = number(None, -1_000_000, 1_000_000)
    """Three discrete actions: those of the lower, middle and upper third of one continuous action;
    null leaves the action space as it is."""
    mirrored_actions: list[int] | None = number(None, 0, 1000)
    """Actions, by number, that change sign in the mirror image of the environment
    (rollouts.mirrored_share); null: it has none."""
    frame_skip: int | None = number(None, 1, 100, unit="steps")
    """Steps of the simulator for each step of an episode, with the same action; rewards are added
    up. null: as the agent or baseline was trained (model=, stage=evaluate and watch), else 1."""
    sticky_actions: float = number(0.0, 0, 1)
    """Probability that a step of the simulator repeats the action of the step before in place of
    the one that is given. 0.25 is usual for Atari games."""
    television: int | None = number(None, 0, 1000)
    """Action, by number, that turns a square of the frames to noise while it is above 0.5 (a noisy
    television, by which exploration can be tested); null: there is none."""
    kwargs: dict[str, Any] = field(default_factory=dict)
    """Further arguments of gymnasium.make: {domain_randomize: true} draws new colours for each
    episode of CarRacing."""


@dataclass
class RolloutsConfig:
    """Collection of episodes."""

    episodes: int = number(10_000, 1, 100_000)
    """Episodes to collect; with rollouts.frames, at most."""
    frames: int | None = number(None, 1, 1_000_000_000)
    """Least number of frames to collect: env.num_envs more episodes (a shard) until there are so
    many, up to one shard more. null: no bound."""
    max_steps: int = number(EPISODE_STEPS, 1, 100_000, unit="steps")
    """Time limit of a collected episode."""
    policy: ActionSource = ActionSource.brownian
    """Random walk (brownian), uniform; sticky_*: each held for 1 to 10 steps; persistent_uniform:
    longer in some episodes; action_noise: rollouts.action_noise alone; controller: an agent."""
    noise: float = number(0.0, 0, 1000)
    """Standard deviation of the noise on the parameters of policy=controller, drawn for each
    episode."""
    noise_exponent: float = number(0.0, 0, 10)
    """The noise of an episode is rollouts.noise times a uniform number to this power; 0: equal."""
    action_noise: float = number(0.0, 0, 1000)
    """Standard deviation of the noise on the controller's outputs before they are bounded, whose
    correlation from one step to the next is 0.8. policy=action_noise: its outputs are noise."""
    ez_greedy_epsilon: float = number(0.0, 0, 1)
    """Probability per step that policy=controller begins 1 to 30 random actions (ez-greedy)."""
    stall_steps: int | None = number(None, 1, 100_000, unit="steps")
    """Steps without a new highest return after which a collected episode ends; null: never."""
    mirrored_share: float = number(0.0, 0, 1)
    """Share of the episodes that are played in the mirror image of the environment, by their seeds:
    frames are flipped from left to right, and env.mirrored_actions change sign."""
    branches: int | None = number(None, 1, 1000)
    """Continuations, from before the failure, of each failed episode of policy=controller; null:
    none. The environment is set back, which the native engine can."""
    branch_steps: int | None = number(None, 4, 100_000, unit="steps")
    """Most steps from the start of a continuation to the failure (least: a quarter); null: 100
    steps of the simulator."""
    on_corrupt: OnCorrupt = OnCorrupt.refuse
    """Damaged data file: refuse stops with an error, skip leaves it out."""


@dataclass
class VAEConfig:
    """VAE encoder (paper, appendix A.1)."""

    encoder: str = "conv_vae"
    """Registered name of the encoder: conv_vae, resnet, conv3d, r3d18, timesformer or one of
    another package."""
    options: dict[str, Any] = field(default_factory=dict)
    """Arguments of an encoder that no key sets: input_size of r3d18; input_size, patch_size,
    hidden_size, layers and heads of timesformer; those of an encoder of another package."""
    blocks: int | None = number(None, 1, 16)
    """Residual blocks of a resnet at each of three scales; null: 1."""
    frames: int | None = number(None, 2, 64)
    """Frames of the clip that a conv3d, r3d18 or timesformer encodes: the newest and those before
    it. null: 4, 16 and 8."""
    pretrained: str | None = None
    """Published weights that the network of r3d18 or timesformer starts from: a safetensors file, a
    folder with one, or hf://owner/name@revision on the Hugging Face Hub; null: random ones."""
    frozen: bool | None = None
    """Keep the network of r3d18 or timesformer as it is; only the linear layer after it and the
    decoder are trained. null: false."""
    latent_size: int = number(32, 1, 512)
    """Size of the latent z."""
    epochs: int = number(10, 0, MANY)
    """Passes over the frames; 0: no training."""
    batch_size: int = number(100, 1, 8192)
    """Frames in a batch."""
    learning_rate: float = number(1e-4, 0, HUGE, above=True)
    """Learning rate of Adam in the first step."""
    final_learning_rate: float = number(1e-4, 0, HUGE, above=True)
    """Learning rate of Adam in the last step, reached by exponential decay."""
    kl_tolerance: float = number(0.5, 0, 1000, unit="nats")
    """Free nats per latent dimension, applied to their sum."""
    kl_weight: float = number(1.0, 0, HUGE)
    """Weight of the KL term. Below 1 more dimensions of z carry information, and more of it."""
    validation_fraction: float = number(0.05, 0, 1)
    """Share of the episodes for validation."""


@dataclass
class RNNConfig:
    """Dynamics model (MDN-RNN: paper, appendix A.2)."""

    model: str = "mdn_rnn"
    """Registered name of the dynamics model: mdn_rnn, gru, transformer or one of another
    package."""
    options: dict[str, Any] = field(default_factory=dict)
    """Arguments of a dynamics model of another package."""
    members: int = number(1, 1, 32)
    """Dynamics models that are trained on the same data, each with its own initial weights and
    order of batches. The state of the first is a feature of the controller; all of them predict in
    the learned model."""
    hidden_size: int = number(256, 1, 4096)
    """Size of the hidden state h: of an LSTM or GRU, or of the output of a transformer's layers."""
    layers: int | None = number(None, 1, 64)
    """Layers of a transformer; null: 2."""
    heads: int | None = number(None, 1, 64)
    """Attention heads in each layer of a transformer; rnn.hidden_size is a multiple of twice as
    many. null: 4."""
    context: int | None = number(None, 1, 4096, unit="steps")
    """Latest steps that a prediction of a transformer depends on; null: 64."""
    mixtures: int = number(5, 1, 32)
    """Gaussians of the mixture."""
    shared_mixture: bool = False
    """One mixture for all dimensions of z, instead of one for each dimension."""
    latent: LatentChoice = LatentChoice.sampled
    """z that is predicted: sampled from the VAE's posterior, or its mean."""
    # 40 epochs of its 10,000 rollouts are the 4,000 steps of the paper's code.
    epochs: int = number(40, 0, MANY)
    """Passes over the episodes; 0: no training."""
    batch_size: int = number(100, 1, 4096)
    """Sequences in a batch."""
    sequence_length: int = number(0, 0, MANY, unit="steps")
    """Length of back-propagation; 0 is whole episodes."""
    learning_rate: float = number(1e-3, 0, HUGE, above=True)
    """Learning rate of Adam in the first step."""
    final_learning_rate: float = number(1e-3, 0, HUGE, above=True)
    """Learning rate of Adam in the last step, reached by exponential decay."""
    gradient_clip: float = number(1.0, 0, HUGE, above=True)
    """Bound of each element of the gradient."""
    is_first: bool = False
    """Further input: 1 in the first step of an episode, else 0."""
    reward_weight: float = number(0.1, 0, HUGE)
    """Weight of the reward's loss; 0: no reward is predicted, and a return in the learned model is
    the number of the simulator's steps survived."""
    termination_weight: float = number(1.0, 0, HUGE)
    """Weight of the termination's cross entropy."""
    termination_pos_weight: float = number(1.0, 0, HUGE, above=True)
    """Weight, in that cross entropy, of a step that ends an episode."""
    validation_fraction: float = number(0.05, 0, 1)
    """Share of the episodes for validation."""
    failure_share: float | None = number(None, 0, 1, above=True)
    """Share of the rows of a training batch whose sequences contain a failure, or end at most
    rnn.failure_steps before one; null: all sequences are drawn alike."""
    failure_steps: int | None = number(None, 0, 100_000, unit="steps")
    """Steps between such a sequence and the failure, at most; null: 100."""
    newest_rounds: int | None = number(None, 1, 1000)
    """Rounds of stage=iterate, the newest, that make half of the training transitions: the others
    are drawn from the rounds before them, anew in each round. null: all episodes."""
    failure_termination: int | None = number(None, 0, 100_000, unit="steps")
    """Steps after the beginning of a stall (rollouts.stall_steps) at which the model learns that
    the episode terminates, as none does by a completed lap. null: as in the environment."""
    baselines: bool = True
    """Train an mdn_rnn with a single Gaussian too, for the report's table of likelihoods."""


@dataclass
class CalibrationConfig:
    """When a dynamics model counts as calibrated on held-out episodes of the newest data."""

    return_error: float = number(0.25, 0, 1000)
    """Largest difference of mean predicted and recorded return at the longest horizon, as a share
    of the root mean square of the recorded returns, or of the predicted ones where nothing was
    earned."""
    recall: float = number(0.5, 0, 1)
    """Least share of the recorded failures that are predicted."""
    precision: float = number(0.5, 0, 1)
    """Least share of the predicted failures that are recorded."""
