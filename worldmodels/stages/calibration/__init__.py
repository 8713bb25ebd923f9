"""Calibration for ``stage=plan``: the parts of a run, each for some seconds, as stages run them.

First the run in miniature, then the rates: pools of workers step each world (`worlds`), and
this process trains and encodes (`models`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from worldmodels.config.choices import ActionSource, Optimizer
from worldmodels.config.schema import Config
from worldmodels.data.episodes import EpisodeSet
from worldmodels.planning.estimate import Rates, without_work
from worldmodels.runs.tracking import console
from worldmodels.stages import controller, evaluate
from worldmodels.stages.calibration import miniature, models, worlds
from worldmodels.stages.calibration.setting import Setting


def calibrate(
    config: Config, folder: Path, policies: set[ActionSource], seconds: float = 4.0
) -> Rates:
    """Measure everything that an estimate needs.

    Args:
        config: of the run.
        folder: for files, which the caller removes.
        policies: that collect, in the run and its bootstrap run.
        seconds: of the longest measurements; others take a fraction of it.

    Raises:
        Stopped: the process was asked to stop.
    """
    setting = Setting(config, folder, seconds)
    with _silent():
        small, base = miniature.run(setting)
        costs, recording = worlds.measure(setting, policies)
        episodes = EpisodeSet.open([folder / worlds.SHARDS], "refuse")
        action_size = episodes.episode(0).actions.shape[1]
        encode = models.encode(setting, episodes)
        search, parameters = models.search(setting)
        video = config.evaluate.video
        by_gradients = config.controller.optimizer is Optimizer.actor_critic
        rates = Rates(
            base=base,
            worlds=costs,
            vae=models.vae(setting, episodes),
            encode=encode,
            rnn=models.rnn(setting, action_size),
            search=search,
            imagination=models.imagination(setting) if by_gradients else None,
            parameters=parameters,
            latent_bytes=4 * (2 * config.vae.latent_size + action_size + 1) + 1,
            num_envs=controller.batch_sizes(setting.context),
            video_frame=models.video_frame(setting) if video else 0.0,
            open_loop_step=models.open_loop_step(setting) if video else 0.0,
            evaluation_engine=setting.runtime.env_spec(config.evaluate.engine).engine,
            recorded=evaluate.RECORDED,
            **recording._asdict(),
        )
        return without_work(rates, small)


@contextmanager
def _silent() -> Iterator[None]:
    """Print nothing: the lines of the stages would be taken for those of the run."""
    before, console.quiet = console.quiet, True
    try:
        yield
    finally:
        console.quiet = before
