"""Cells of tables with a value for each training seed."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from scipy import stats


def with_interval(values: Sequence[float], form: str) -> str:
    """Mean and its 95 % interval by Student's t; the mean alone of fewer than three values.

    Args:
        values: one for each seed.
        form: of each number, as `format` takes it.
    """
    mean, count = statistics.mean(values), len(values)
    if count < 3:
        return format(mean, form)
    half = stats.t.ppf(0.975, count - 1) * statistics.stdev(values) / math.sqrt(count)
    return f"{mean:{form}} ({mean - half:{form}} to {mean + half:{form}})"


def with_range(values: Sequence[float], form: str) -> str:
    """Mean, and the least and greatest value; the mean alone where all are written alike.

    Args:
        values: one for each seed.
        form: of each number, as `format` takes it.
    """
    mean, low, high = (
        format(value, form) for value in (statistics.mean(values), min(values), max(values))
    )
    return mean if low == high else f"{mean} ({low} to {high})"
