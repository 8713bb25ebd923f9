"""The sections of the configuration about what acts: controller, model-free baseline, how both are
evaluated, and rounds of training; see ``sections.py``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from worldmodels import seeds
from worldmodels.config.choices import (
    Algorithm,
    Engine,
    Features,
    HiddenChoice,
    LatentChoice,
    MemberSampling,
    Objective,
    Optimizer,
    StartChoice,
    WorldKind,
)
from worldmodels.config.keys import EPISODE_STEPS, HUGE, MANY, number


@dataclass
class ControllerConfig:
    """Linear controller and CMA-ES (paper, appendix A.3)."""

    world: WorldKind = WorldKind.real
    """Where it is trained: real environment, or learned model (dream)."""
    optimizer: Optimizer = Optimizer.cma_es
    """How it is trained: by CMA-ES; or in the learned model, by gradients (actor_critic), to which
    the keys of actor_critic belong, and those of a search do not."""
    objective: Objective = Objective.reward
    """What the search maximises: the task's reward or, in the learned model, an intrinsic one, for
    a controller that collects new data: disagreement of an ensemble's members (rnn.members) about
    the next latent, or the error of random network distillation (distillation)."""
    population: int = number(64, 3, 10_000)  # with 2, pycma fails in many dimensions
    """Candidates in a generation."""
    episodes: int = number(16, 1, 10_000)
    """Episodes of a candidate in a generation."""
    first_episodes: int | None = number(None, 2, 10_000)
    """Episodes of a candidate at first, raised to controller.episodes as the scores of candidates
    come closer; null: controller.episodes always."""
    stall_steps: int | None = number(None, 1, 100_000, unit="steps")
    """Steps without a new highest return after which a training episode ends; null: never."""
    termination_penalty: float = number(0.0, 0, HUGE)
    """Subtracted from the return of an episode that terminates, in training and selection but in no
    score: in the learned model failures are rarer, and episodes may be shorter, than in the
    environment. The critic of actor_critic learns it with predicted probabilities."""
    generations: int = number(1800, 1, 1_000_000)
    """Generations, at most."""
    total_steps: int | None = number(None, 1, 10**12, unit="steps")
    """Steps of episodes (actions; each is env.frame_skip steps of the simulator) in training after
    which no generation begins; null: no bound."""
    sigma: float = number(0.1, 0, 1000, above=True)
    """CMA-ES's initial step size."""
    final_sigma: float | None = number(None, 0, 1000, above=True)
    """Step size at the end of the budget, by exponential decay; null: CMA-ES's own."""
    diagonal: bool = False
    """Diagonal covariance matrix instead of a full one."""
    pca_components: int | None = number(None, 1, 100_000)
    """Principal components of the features that are searched; null: all features."""
    max_steps: int = number(EPISODE_STEPS, 1, 100_000, unit="steps")
    """Time limit of an episode in training and selection."""
    features: Features = Features.zh
    """Inputs: z, z with the dynamics model's hidden state h, or with c and h, where c is the cell
    state of an mdn_rnn."""
    latent: LatentChoice = LatentChoice.sampled
    """z: sampled from the VAE's posterior, or its mean."""
    hidden: HiddenChoice = HiddenChoice.previous
    """h with z at time t: previous is computed from z up to t-1, updated includes z at t."""
    bias: bool = True
    """A bias for each output."""
    hidden_units: int = number(0, 0, 1024)
    """Units of a hidden layer with tanh; 0: linear controller."""
    temperature: float = number(1.0, 0.001, 1000)
    """Temperature tau of sampling from the learned model."""
    final_temperature: float | None = number(None, 0.001, 1000)
    """Temperature at the end of the budget, reached linearly over controller.total_steps, or over
    controller.generations without them. Selection, evaluation and exports have this one from the
    start, so that the scores of all generations compare. null: controller.temperature always."""
    member_sampling: MemberSampling = MemberSampling.step
    """How often a member of an ensemble (rnn.members) is drawn in the learned model, to predict the
    next latent and the termination: in each step, or once for each episode."""
    pessimism: float = number(0.0, 0, 1000)
    """Standard deviations of the members' predicted rewards that are subtracted from their mean, in
    the learned model."""
    sampled_termination: bool = False
    """An episode in the learned model terminates with the predicted probability, else where the
    predicted odds, which are rnn.termination_pos_weight times those of the data, are above 1."""
    starts: StartChoice = StartChoice.first
    """Where episodes in the learned model begin: at first frames of recorded episodes, or at any
    moment of them (recorded), with the dynamics model's state of that moment."""
    failure_starts: float = number(0.0, 0, 1)
    """Of the recorded moments at which episodes in the learned model begin, first frames aside, the
    share 20 to 100 steps of the simulator before a failure."""
    dream_num_envs: int | None = number(None, 1, 16_384)
    """Episodes in one batch in the learned model; null: 64 to 256 on a CPU, all on a GPU."""
    overlap: bool = False
    """Begin a generation before the one before it ends, so that no worker waits for its last jobs;
    candidates then come from the search distribution of one generation earlier."""
    eval_interval: int = number(25, 1, 1_000_000, unit="generations")
    """Generations between evaluations on the selection seeds."""
    eval_episodes: int = number(64, 1, 100_000)
    """Episodes of an evaluation on the selection seeds."""
    exploitation_patience: int | None = number(None, 1, 1_000_000)
    """Evaluations in a row whose mean return in the learned model exceeds the largest recorded one,
    after which the search stops; the agent is then the best controller before them. null: it goes
    on."""

    @property
    def evaluation_temperature(self) -> float:
        """Of the learned model wherever candidates are not trained."""
        return self.temperature if self.final_temperature is None else self.final_temperature


@dataclass
class ActorCriticConfig:
    """Training of the controller by gradients in the learned model, with a critic
    (controller.optimizer=actor_critic)."""

    updates: int = number(1000, 1, MANY * 10)
    """Steps of the optimiser."""
    batch_size: int = number(512, 1, 65_536)
    """Episodes in the learned model for each step, which begin at any moment of recorded ones."""
    horizon: int = number(15, 1, 1000, unit="steps")
    """Steps of such an episode; the critic has the value of what follows."""
    discount: float = number(0.99, 0, 1, above=True)
    """Discount factor of a step, below 1."""
    return_lambda: float = number(0.95, 0, 1)
    """Lambda of the returns: 1 is the rewards of all steps and the value of the last, 0 that of one
    step."""
    action_noise: float = number(0.3, 0, 100)
    """Standard deviation of the noise on the controller's outputs, before they are bounded."""
    learning_rate: float = number(3e-4, 0, HUGE, above=True)
    """Learning rate of Adam in the first step."""
    final_learning_rate: float = number(3e-4, 0, HUGE, above=True)
    """Learning rate of Adam in the last step, reached by exponential decay."""


@dataclass
class BaselineConfig:
    """Model-free baseline of Stable-Baselines3, trained where the controller would be
    (controller.world): on frames in the environment, on the controller's features in the learned
    model."""

    algorithm: Algorithm = Algorithm.ppo
    """ppo; dqn, for discrete actions; sac, for continuous ones."""
    total_steps: int = number(1_000_000, 1, 10**10, unit="steps")
    """Steps of episodes (actions; each is env.frame_skip steps of the simulator) in training, of
    all environments together."""
    num_envs: int = number(16, 1, 4096)
    """Environments that it trains in at a time."""
    frame_stack: int = number(4, 1, 64)
    """Grey frames that it observes in the environment: the newest and those before it."""
    learning_rate: float | None = number(None, 0, HUGE, above=True)
    """Learning rate in the first step; null: that of Stable-Baselines3."""
    final_learning_rate: float | None = number(None, 0, HUGE, above=True)
    """Learning rate in the last step, reached by linear decay; null: it stays the same."""
    normalise_reward: bool = True
    """Divide rewards in training by the standard deviation of the discounted returns so far, and
    limit them to 10 in size (VecNormalize of Stable-Baselines3)."""
    checkpoint_steps: int = number(100_000, 1, 10**9, unit="steps")
    """Steps between checkpoints, at each of which new episodes begin and the policy is evaluated on
    the selection seeds; the best of these policies is kept."""
    eval_episodes: int = number(32, 1, 100_000)
    """Episodes of that evaluation."""
    options: dict[str, Any] = field(default_factory=dict)
    """Further arguments of the algorithm, as Stable-Baselines3 names them: {ent_coef: 0.01}; those
    of its network are policy_kwargs, as in {policy_kwargs: {net_arch: [64]}}."""


@dataclass
class EvaluateConfig:
    """Evaluation of an agent, on seeds that training never uses."""

    engine: Engine = Engine.gymnasium
    """Simulator, as env.engine; the report names one that is not gymnasium."""
    episodes: int = number(100, 1, 100_000)
    """Episodes, one for each seed."""
    first_seed: int = number(0, 0, seeds.EVALUATION_END - 1)
    """Seed of the first episode; the next has the next seed."""
    video: bool = True
    """Write videos of the median and the three worst episodes, and episodes for the report."""


@dataclass
class IterateConfig:
    """Rounds of collection and training (paper, section 5)."""

    rounds: int = number(2, 1, 1000)
    """Number of rounds."""
    noise: float = number(0.1, 0, 1000)
    """The value of rollouts.noise in the rounds after the first."""
    schedule: list[dict[str, Any]] = field(default_factory=list)
    """Keys of sections, and the seed, that change, as nested mappings, each from a round on: with
    {round: 3, vae: {epochs: 0}} all rounds from the third on keep the encoder of the second, and
    the latents of episodes that are encoded already. After the first round data is collected with
    rollouts.policy=controller, unless an entry of a later round gives another."""
    patience: int | None = number(None, 1, 1000)
    """Rounds in a row whose dynamics model is calibrated under recorded actions and whose newest
    episodes have a mean return no higher than in a round before, after which no further round
    begins; null: all rounds run."""
