"""The tables of rounds, from the ``rounds.json`` of ``stage=iterate``."""

from __future__ import annotations

from typing import Any

import tables

from worldmodels.reporting.scores import SCORE_HEADER, score_rows


def scores(record: dict[str, Any]) -> str:
    """The agents of the rounds, in the environment and in the dream."""
    policies = [tables.score_of(name, one) for name, one in record["scores"].items()]
    return tables.markdown_table(SCORE_HEADER, score_rows(policies, []))


def round_by_round(record: dict[str, Any]) -> str:
    """Frames, and predicted and real mean return, of each round."""
    rows = []
    for entry in record["rounds"]:
        predicted, earned = entry["predicted"], entry["earned"]
        low, high = earned["interval"]
        rows.append(
            (
                entry["name"].removeprefix("round-"),
                f"{entry['frames']['total']:,}",
                f"{entry['recorded_return']:.0f}",
                f"{predicted['mean']:.0f}",
                f"**{earned['mean']:.0f}**",
                f"{low:.0f} to {high:.0f}",
                "yes" if entry["verdict"]["calibrated"] else "no",
            )
        )
    header = ("round", "frames", "recorded", "predicted", "earned", "95 % interval", "calibrated")
    return tables.markdown_table(header, rows)
