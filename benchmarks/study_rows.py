"""The rows of the studies that ``benchmarks/study.py`` runs."""

from __future__ import annotations

from dataclasses import dataclass

SEEDS = (1, 2, 3)
SEARCHED = ("controller.population=64", "controller.diagonal=true")
"""Values of preset=laptop for CarRacing when the rows were run, which have them where they say
nothing else: those with 128 candidates and with a full covariance matrix have become the preset."""
DREAMT = (
    "controller.world=dream",
    "controller.latent=sampled",
    "controller.total_steps=10_000_000",
)
"""Searches in the learned model of CarRacing whose data has random action bursts."""
AGENT = "pretrained/carracing"


@dataclass(frozen=True)
class Row:
    """A row of a table.

    Args:
        table: where it stands.
        name: of its runs, with the seed after it.
        what: the row's first cell.
        overrides: what differs from the base run.
        seeds: of its runs.
        base: what it is a variant of, instead of the study's base: a run, or the folder of an
            agent, whose VAE is used and whose controller collects where that is configured.
    """

    table: str
    name: str
    what: str
    overrides: tuple[str, ...] = ()
    seeds: tuple[int, ...] = SEEDS
    base: str | None = None

    @property
    def stages(self) -> tuple[str, ...]:
        """The stages that differ from those of the base, and the evaluation."""
        if self.base == AGENT:
            return ("rollouts", "vae", "rnn", "controller", "evaluate")
        own_dynamics = any(word.startswith("rnn.") for word in self.overrides)
        return (*(("rnn",) if own_dynamics else ()), "controller", "evaluate")


@dataclass(frozen=True)
class Study:
    """Variants of one run.

    Args:
        base: that run, or its agent's folder.
        overrides: of every command.
        rows: of all tables, the most important ones first.
        kept: overrides of the rows with a base of their own: its VAE is not trained further.
    """

    base: str
    overrides: tuple[str, ...]
    rows: tuple[Row, ...]
    kept: tuple[str, ...] = ("vae.epochs=0",)

    def run(self, row: Row, seed: int) -> str:
        """The name of a run."""
        return f"study/{row.table}/{row.name}-{seed}"

    def command(self, row: Row, stage: str, seed: int) -> list[str]:
        """One stage of a run."""
        return [
            *("python", "-m", "worldmodels", f"stage={stage}", "preset=laptop"),
            *(f"base={row.base or self.base}", f"run={self.run(row, seed)}", f"seed={seed}"),
            *("rnn.baselines=false", "evaluate.video=false", *self.overrides),
            *(self.kept if row.base else ()),
            *row.overrides,
        ]


def carracing() -> Study:
    """Searches of 2 M steps, or ten times as long in the learned model."""
    z, one = "controller.features=z", (1,)
    world = ("controller.world=dream", "controller.total_steps=20_000_000")
    dream = (*world, "controller.latent=sampled")
    means = (*world, "rnn.latent=mean", "controller.temperature=1.0")
    hidden = (z, "controller.hidden_units=40")
    return Study(
        "laptop",
        (*SEARCHED, "controller.total_steps=2_000_000", "evaluate.engine=native"),
        (
            Row("ablation", "full", "VAE, MDN-RNN, linear controller"),
            Row("ablation", "vision", "VAE, linear controller", (z,)),
            Row("ablation", "hidden", "VAE, controller with a hidden layer of 40", hidden),
            Row(
                "ablation",
                "untrained",
                "VAE, untrained MDN-RNN, linear controller",
                ("rnn.epochs=0",),
            ),
            *(
                Row(
                    "dream", f"tau-{t}", f"temperature {t}", (*dream, f"controller.temperature={t}")
                )
                for t in (0.1, 0.5, 1.0, 1.15, 1.3)
            ),
            Row("dream", "means", "temperature 1.0, means of latents", means),
            *(Row("action_bursts", *row, one, AGENT) for row in _bursts()),
            *(
                Row("burst_temperatures", *row, base="study/action_bursts/epsilon-0.03-1")
                for row in _temperatures()
            ),
            Row("rnn_variants", "run", "as in the base run", (), one, AGENT),
            *(
                Row("rnn_variants", *row, one, "study/rnn_variants/run-1")
                for row in _dynamics_variants()
            ),
            *(Row("search", *row, one, "study/rnn_variants/run-1") for row in _searches()),
        ),
        ("~bootstrap", "vae.epochs=0"),  # the agent replaces the bootstrap run
    )


Variant = tuple[str, str, tuple[str, ...]]
"""A row's name, first cell and overrides."""


def _bursts() -> tuple[Variant, ...]:
    """Probability of random action bursts in the episodes that the MDN-RNN is trained on."""
    collection = ("rollouts.noise=0.05", "rnn.epochs=15")
    return tuple(
        (
            f"epsilon-{chance}",
            what,
            (
                *collection,
                f"rollouts.ez_greedy_epsilon={chance}",
                *DREAMT,
                "controller.temperature=1.0",
            ),
        )
        for chance, what in (
            *((0.03, "ε = 0.03"), (0.0, "ε = 0")),
            *((0.1, "ε = 0.1"), (0.01, "ε = 0.01")),
        )
    )


def _temperatures() -> tuple[Variant, ...]:
    """Temperatures of the MDN-RNN whose data has random action bursts."""
    return tuple(
        (f"tau-{t}", f"temperature {t}", (*DREAMT, f"controller.temperature={t}"))
        for t in (0.1, 0.5, 1.0, 1.15, 1.3)
    )


def _dynamics_variants() -> tuple[Variant, ...]:
    """Variants of the MDN-RNN, and of the controller's input from it."""
    return (
        ("shared", "one mixture for all dimensions", ("rnn.shared_mixture=true",)),
        ("means", "trained on means of latents", ("rnn.latent=mean",)),
        ("short", "windows of 25 steps", ("rnn.sequence_length=25", "rnn.batch_size=64")),
        ("sampled", "controller input: sampled latents", ("controller.latent=sampled",)),
        ("gaussian", "single Gaussian", ("rnn.mixtures=1",)),
        ("long", "windows of 400 steps", ("rnn.sequence_length=400", "rnn.batch_size=4")),
        ("after", "controller input: next LSTM state", ("controller.hidden=updated",)),
    )


def _searches() -> tuple[Variant, ...]:
    """Variants of the search."""
    return (
        ("patient", "no early end of stuck episodes", ("controller.stall_steps=null",)),
        ("sixteen", "16 episodes per candidate", ("controller.first_episodes=null",)),
        ("many", "128 candidates", ("controller.population=128",)),
        ("few", "32 candidates", ("controller.population=32",)),
        ("own", "CMA-ES step-size adaptation", ("controller.final_sigma=null",)),
        ("narrow", "initial step size 0.03", ("controller.sigma=0.03",)),
        ("wide", "initial step size 0.3", ("controller.sigma=0.3",)),
        ("full", "full covariance", ("controller.diagonal=false",)),
        ("raw", "search in feature space", ("controller.pca_components=null",)),
        ("all", "288 principal components", ("controller.pca_components=288",)),
        ("sixteen-components", "16 principal components", ("controller.pca_components=16",)),
    )


def takecover() -> Study:
    """Searches of the preset's steps; one seed, and several in the tables of temperatures.

    The tables ``controller_inputs`` and ``rnn_epochs`` use a temperature at which so short a search
    succeeds.
    """
    one, mild = (1,), ("controller.temperature=1.0",)
    more = ("controller.total_steps=20_000_000", "controller.eval_episodes=256")
    return Study(
        "takecover",
        ("env=takecover", "evaluate.first_seed=0", "evaluate.episodes=100"),
        (
            *(
                Row(
                    "temperatures", f"tau-{t}", f"temperature {t}", (f"controller.temperature={t}",)
                )
                for t in (0.1, 0.5, 1.0, 1.15, 1.3)
            ),
            *(
                Row(
                    "temperatures",
                    f"annealed-{first}-{last}",
                    f"temperature {first} to {last}",
                    (f"controller.temperature={first}", f"controller.final_temperature={last}"),
                )
                for first, last in ((0.5, 1.15), (1.5, 1.0))
            ),
            Row("longer", "tau-0.5", "temperature 0.5", ("controller.temperature=0.5", *more)),
            Row("longer", "tau-1.0", "temperature 1.0", (*mild, *more), one),
            *(
                Row("rnn_epochs", name, what, (*mild, *overrides), one)
                for name, what, overrides in _dream_variants()
            ),
            *(
                Row("controller_inputs", name, what, (*mild, override), one)
                for name, what, override in (
                    ("z", "controller input: z", "controller.features=z"),
                    ("zh", "controller input: z, h", "controller.features=zh"),
                    ("few", "48 principal components", "controller.pca_components=48"),
                    ("raw", "search in feature space", "controller.pca_components=null"),
                )
            ),
        ),
    )


def _dream_variants() -> tuple[Variant, ...]:
    """Variants of the MDN-RNN in which controllers are trained."""
    return (
        ("run", "as in the base run", ()),
        ("short", "one fifth of the epochs", ("rnn.epochs=2",)),
        ("deaths", "termination loss unweighted", ("rnn.termination_pos_weight=1",)),
        ("means", "means of latents", ("rnn.latent=mean", "controller.latent=mean")),
        ("shared", "one mixture for all dimensions", ("rnn.shared_mixture=true",)),
        ("reward", "reward predicted by the MDN-RNN", ("rnn.reward_weight=0.1",)),
        ("restart", "no is_first input", ("rnn.is_first=false",)),
    )


STUDIES = {"carracing": carracing, "takecover": takecover}
