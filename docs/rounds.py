"""The tables of rounds, from the ``rounds.json`` of ``stage=iterate``."""

from __future__ import annotations

from typing import Any

import tables

from worldmodels.reporting.scores import SCORE_HEADER, score_rows


def scores(record: dict[str, Any]) -> str:
    """The agents of the rounds, in the environment and in the dream."""
    policies = [tables.score_of(name, one) for name, one in record["scores"].items()]
    return tables.markdown_table(SCORE_HEADER, score_rows(policies, []))
