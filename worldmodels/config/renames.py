"""Keys and values of earlier versions, each with its present name; also in CHANGELOG.md.

They may stand on a command line, in a file of ``--config-dir`` and in the manifest of a run. None
is accepted: the error names the present one.
"""

from __future__ import annotations

EXPERIMENT = "experiment"
"""The group of what a preset changes for one environment: ``env`` and ``preset`` choose its file,
and no word of a command line does."""

RENAMED_GROUPS = {"recipe": EXPERIMENT}
"""Old folder of ``--config-dir`` -> present folder, where neither is a key."""

RENAMED = {
    "env.lanes": "env.num_envs",
    "env.lever": "env.action_bins",
    "rollouts.epsilon": "rollouts.ez_greedy_epsilon",
    "controller.dream_lanes": "controller.dream_num_envs",
    "controller.patience": "controller.stall_steps",
    "controller.budget": "controller.total_steps",
    "controller.components": "controller.pca_components",
    "controller.select_every": "controller.eval_interval",
    "controller.select_episodes": "controller.eval_episodes",
    "fresh": "overwrite",
    "scout": "bootstrap",
    "rnn.restart": "rnn.is_first",
    "rnn.death_weight": "rnn.termination_pos_weight",
    "iterate.later": "iterate.schedule",
    "iterate.encoder_rounds": "iterate.schedule",
}
"""Old key -> present key. An old section or group stands for all keys below it."""

RENAMED_VALUES = {
    "controller.hidden": {"before": "previous", "after": "updated"},
    "stage": {"scout": "bootstrap"},
}
"""Present key -> old value -> present value."""


def renamed(key: str) -> str | None:
    """The present name of an old `key`; None if it was not renamed."""
    parts = key.split(".")
    for count in range(len(parts), 0, -1):
        present = RENAMED.get(".".join(parts[:count]))
        if present is not None:
            return ".".join([present, *parts[count:]])
    return None


def renamed_value(key: str, value: object) -> str | None:
    """The present name of an old `value` of `key`; None if it was not renamed."""
    return RENAMED_VALUES.get(key, {}).get(str(value))
