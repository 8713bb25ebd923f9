"""The rows of ``benchmarks/model_comparison.py``, and how large it is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """A pair of models.

    Args:
        name: of the row and of its runs, with the seed after it.
        encoder: ``vae.encoder``.
        dynamics: ``rnn.model``.
    """

    name: str
    encoder: str = "conv_vae"
    dynamics: str = "mdn_rnn"

    @property
    def models(self) -> dict[str, str]:
        """Stage -> the model that it trains."""
        return {"vae": self.encoder, "rnn": self.dynamics}

    @property
    def tuned(self) -> dict[str, str]:
        """Stage -> a model that is not the paper's, whose learning rate is chosen."""
        paper = (Row.encoder, Row.dynamics)
        return {stage: model for stage, model in self.models.items() if model not in paper}


PAPER = Row("paper")
ROWS = (
    PAPER,
    Row("gru", dynamics="gru"),
    Row("transformer", dynamics="transformer"),
    Row("resnet", encoder="resnet"),
    Row("conv3d", encoder="conv3d"),
)
RATES = ("1e-3", "3e-3")
"""Learning rates that are tried for a model that is not the paper's: those of ``preset=quick`` for
encoder and dynamics model."""
DREAMT = ("paper", "gru", "transformer")
"""Rows in the picture, from the top."""
DATA = "data"
"""Named like a row on the command line: the episodes of all rows."""


@dataclass(frozen=True)
class Size:
    """How large a comparison is.

    Args:
        folder: of its runs, below that of the data.
        frames: recorded for training and validation, and held out; by `KINDS`.
        probe: seconds of a measurement of throughput.
        words: of every command.
        steps: world -> words that bound a controller's training in it.
    """

    folder: str
    frames: tuple[int, int]
    probe: float
    words: tuple[str, ...]
    steps: dict[str, tuple[str, ...]]


SEARCH = (
    *("controller.population=32", "controller.diagonal=true", "controller.eval_interval=5"),
    "controller.eval_episodes=16",
)
FULL = Size(
    "model_comparison",
    (50_000, 10_000),
    30.0,
    ("preset=quick", "evaluate.episodes=100", *SEARCH),
    {
        "dream": ("controller.total_steps=2_000_000",),
        "real": ("controller.total_steps=600_000",),
    },
)
TINY = Size(
    "model_comparison-tiny",
    (600, 600),
    0.1,
    ("preset=smoke", "controller.pca_components=8"),
    {"dream": (), "real": ()},
)
WORDS = {
    "carracing": ("env=carracing", "evaluate.engine=native"),
    "takecover": ("env=takecover", "env.frame_skip=4"),
}
"""Environment -> words of every command."""
EVERY = (
    *("workers.processes=0", "device=cpu", "rnn.baselines=false", "evaluate.video=false"),
    *("controller.features=zh", "controller.latent=sampled"),
)
"""Words of every command: one process with one thread, and inputs of the controller that each of
the dynamics models has."""
