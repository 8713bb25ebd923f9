"""What ``stage=plan`` measures: a run in miniature, and the time that stages wait for data."""

import threading
from collections.abc import Iterator

import pytest
from command import composed

from worldmodels.config.environments import env_spec
from worldmodels.data.prefetch import prefetch
from worldmodels.stages.calibration.miniature import STEPS, miniature
from worldmodels.system import spent


@pytest.mark.parametrize("skip", ["null", "4"])
def test_a_run_in_miniature_has_as_many_steps_with_a_frame_skip(skip: str) -> None:
    small = miniature(composed("preset=quick", f"env.frame_skip={skip}"), workers=1)
    steps = (small.rollouts.max_steps, small.controller.max_steps, env_spec(small.env).max_steps)
    assert steps == (STEPS, STEPS, STEPS)


def test_waiting_for_data_is_counted() -> None:
    asked = threading.Event()

    def items() -> Iterator[int]:
        yield 1
        asked.wait()  # until the reader has come for what is not there
        yield 2

    before = spent.spent().get("reading", 0.0)
    reader = prefetch(items())
    assert next(reader) == 1
    threading.Timer(0.05, asked.set).start()
    assert next(reader) == 2
    assert spent.spent()["reading"] - before >= 0.04
