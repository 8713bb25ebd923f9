"""The run in miniature: every stage with the configured models and engines, as short as can be.

It shows what a stage takes whatever the amount of its work, and its memory, and leaves an agent and
episodes for the measurements that follow.
"""

from __future__ import annotations

from dataclasses import replace

from worldmodels.config.choices import ActionSource
from worldmodels.config.execution import LoggerConfig
from worldmodels.config.schema import Config, changed
from worldmodels.planning.estimate import Base
from worldmodels.stages import controller, evaluate, report, rnn, rollouts, vae
from worldmodels.stages.calibration.setting import Setting
from worldmodels.stages.context import Context
from worldmodels.system import interrupts

STEPS = 24
"""Time limit of its episodes."""
_EPISODES = 4
"""For each worker."""


def run(setting: Setting) -> tuple[Config, dict[str, Base]]:
    """Run it in the folder of `setting`.

    Returns:
        its configuration, and what each stage took.

    Raises:
        Stopped: the process was asked to stop.
    """
    config = miniature(setting.config, setting.workers(str(setting.runtime.real_device)))
    context = Context(config, setting.context.run)
    bases = {}
    for stage in (rollouts, vae, rnn, controller, evaluate, report):
        interrupts.check()
        stage.run(context)
        name = stage.__name__.rpartition(".")[2]
        manifest = context.run.manifest(name)
        used = manifest["resources"]
        peaks = used["peak_bytes"]
        bases[name] = Base(
            seconds=manifest["wall_s"],
            process=peaks["process"],
            worker=peaks.get("worker", 0),
            disk=used["disk_bytes"],
            gpu=peaks.get("gpu", 0),
        )
    return config, bases


def miniature(config: Config, workers: int) -> Config:
    """The configuration of the run in miniature.

    Args:
        config: of the whole run.
        workers: that share its jobs.
    """
    small = changed(
        config,
        {
            "env": {"max_steps": STEPS * (config.env.frame_skip or 1), "num_envs": 2},
            "rollouts": {"episodes": _EPISODES * workers, "frames": None, "max_steps": STEPS},
            "vae": {"epochs": 1, "validation_fraction": 0.25},
            "rnn": {"epochs": 1, "validation_fraction": 0.25},
            "controller": {
                "population": 4,
                "episodes": 2 * workers,
                "first_episodes": None,
                "stall_steps": None,
                "generations": 1,
                "total_steps": None,
                "final_sigma": None,
                "max_steps": STEPS,
                "eval_interval": 1,
                "eval_episodes": 2,
            },
            "actor_critic": {"updates": 1},
            "evaluate": {"episodes": _EPISODES * workers},
        },
    )
    if small.rollouts.policy is ActionSource.controller:
        small.rollouts = replace(small.rollouts, policy=ActionSource.uniform)
    small.bootstrap, small.model, small.base, small.overwrite = {}, None, None, False
    small.logger, small.price_per_hour = LoggerConfig(), None
    return small
