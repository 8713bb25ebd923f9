"""The table of docs/follow.md: figures that recorded runs logged, and where they are healthy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tables

from worldmodels.runs import health

RUNS = {
    "CarRacing": ("laptop", "laptop-28M", "quick"),
    "Take Cover": ("takecover", "takecover-first", "takecover-again", "takecover-bootstrapped"),
}
"""Environment -> the results that its column is from."""
MEANINGS = {
    "validation/reconstruction": "vae: squared error of a frame, summed over pixels and colours",
    "validation/kl": "vae: KL divergence of the posterior from the prior, nats per frame",
    "validation/active_dims": "vae: latent dimensions with a KL divergence above 0.01 nats",
    "validation/nll": "rnn: negative log-likelihood of the next latent, nats per dimension",
    "copy_last": "rnn: the same of a Gaussian around the last latent, in the manifest's summary",
    "validation/reward_mse": "rnn: squared error of the reward",
    "validation/termination_bce": "rnn: cross-entropy of the termination, nats",
    health.SINCE_BEST: "controller: evaluations since the highest mean, not logged itself",
}
_RANGES = {
    "validation/active_dims": f"at least {health.ACTIVE_SHARE:g} of vae.latent_size",
    "validation/nll": "below `copy_last`, from half of the training on",
    health.SINCE_BEST: f"below {health.EVALUATIONS}",
}


def figures(runs: dict[str, dict[str, Any]]) -> str:
    """A row for each figure: its meaning, healthy range, and values in recorded runs.

    Args:
        runs: name of a result -> its content.
    """
    columns = {
        env: [found for name in names for found in recorded(runs[name])]
        for env, names in RUNS.items()
    }
    rows = [
        (
            f"`{figure}`",
            meaning,
            _RANGES.get(figure, "–"),
            *(
                _span([value for name, value in found if name == figure])
                for found in columns.values()
            ),
        )
        for figure, meaning in MEANINGS.items()
    ]
    return tables.markdown_table(("figure", "meaning", "healthy", *columns), rows)


def recorded(run: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """The figures of a recorded run and of its bootstrap run, by name.

    Args:
        run: a file of ``docs/results/``.
    """
    for manifest in run["stages"].values():
        summary = manifest["summary"]
        for name, value in summary.items():
            if f"validation/{name}" in MEANINGS:
                yield f"validation/{name}", value
        if "copy_last" in (table := summary.get("validation_nll", {})):
            yield "copy_last", table["copy_last"]
    highest, since = float("-inf"), 0
    for _, _, mean in run["curve"]:
        since = 0 if mean > highest else since + 1
        highest = max(highest, mean)
        yield health.SINCE_BEST, since


def _span(values: list[float]) -> str:
    if not values:
        return "–"
    low, high = (f"{value:.3g}" for value in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"
