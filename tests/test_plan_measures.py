"""What ``stage=plan`` measures: a run in miniature, and the time that stages wait for data."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

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


def test_waiting_for_data_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = threading.Semaphore(0)

    @contextmanager
    def asking(activity: str) -> Iterator[None]:
        with spent.spending(activity):
            asked.release()
            yield

    def items() -> Iterator[int]:
        asked.acquire()
        yield 1
        asked.acquire()  # until the reader has come for what is not there
        time.sleep(0.05)
        yield 2

    monkeypatch.setattr("worldmodels.data.prefetch.spending", asking)
    before = spent.spent().get("reading", 0.0)
    reader = prefetch(items())
    assert next(reader) == 1
    assert next(reader) == 2
    assert spent.spent()["reading"] - before >= 0.05
