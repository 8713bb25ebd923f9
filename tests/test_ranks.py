"""Messages between two processes of one training, and what each raises when one of them fails."""

import os
import signal
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from command import WARM, main_port
from waiting import wait_for

from worldmodels.errors import ConfigError, Stopped, TrainingError
from worldmodels.system import interrupts
from worldmodels.training import launch
from worldmodels.training.ranks import ALONE, Ranks

CPU = torch.device("cpu")


def together(work: Callable[[Ranks], Any]) -> list[Any]:
    """What a function returns in each of two processes that were started as torchrun does."""
    with main_port() as port, ProcessPoolExecutor(2, WARM) as processes:
        return [*processes.map(_in_rank, (0, 1), (port, port), (work, work))]


def _in_rank(rank: int, port: str, work: Callable[[Ranks], Any]) -> Any:
    os.environ |= {
        "TORCHELASTIC_RUN_ID": "none",
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": "2",
        "WORLD_SIZE": "2",
        "MASTER_PORT": port,
    }
    with launch.connected(CPU) as ranks:
        return work(ranks)


def everything(ranks: Ranks) -> dict[str, Any]:
    """Every kind of message, and its result."""
    rank = float(ranks.rank)
    weights = torch.full((2,), rank + 1)
    ranks.copy_from_first([weights])
    used, unused = torch.nn.Parameter(torch.zeros(3)), torch.nn.Parameter(torch.zeros(2))
    used.grad = torch.tensor([1.0, rank, 10 * rank])
    ranks.sum_gradients([used, unused])
    assert unused.grad is not None
    rows = torch.arange(5)[ranks.share(5)].reshape(-1, 1)
    if ranks.first:
        ranks.call({"stage": "vae"})
        heard = {"stage": "vae"}
    else:
        heard = ranks.receive(answer_signals=True)
    return {
        "exchange": ranks.exchange(rank, 7),
        "gather": ranks.gather({"name": "x" * (1 + ranks.rank)}),
        "weights": weights.tolist(),
        "gradients": [used.grad.tolist(), unused.grad.tolist()],
        "whole": ranks.whole([rows], 5)[0].flatten().tolist(),
        "heard": heard,
    }


def test_both_processes_receive_what_each_gives() -> None:
    expected = {
        "exchange": [[0, 7], [1, 7]],
        "gather": [{"name": "x"}, {"name": "xx"}],
        "weights": [1, 1],
        "gradients": [[2, 1, 10], [0, 0]],
        "whole": [0, 1, 2, 3, 4],
        "heard": {"stage": "vae"},
    }
    assert together(everything) == [expected, expected]


def failing(ranks: Ranks) -> str:
    """One process fails while the other waits for its number."""
    error = ConfigError("vae.batch_size: too large;\nlower it")
    try:
        if ranks.first:
            ranks.exchange(1)
        raise error
    except TrainingError as heard:
        ranks.fail(heard)  # which the other has raised itself
        return str(heard)
    except ConfigError:
        ranks.fail(error)
        return f"ended: {ranks.ended}"


def test_the_error_of_one_process_ends_the_other_with_its_line() -> None:
    assert together(failing) == [
        "process 1 of 2: vae.batch_size: too large; lower it",
        "ended: True",
    ]


def leaving(ranks: Ranks) -> str:
    """One process is gone while the other waits for it."""
    if not ranks.first:
        return "gone"
    with pytest.raises(TrainingError, match="another of the 2 processes of the training has ended"):
        ranks.exchange(1)
    ranks.fail(ConfigError("to nobody"))
    return "heard"


def test_a_process_that_has_ended_is_one_line() -> None:
    assert together(leaving) == ["heard", "gone"]


def stopped(marker: Path, ranks: Ranks) -> str:
    """A process receives SIGTERM while it waits for rank 0, whose next call fails."""
    if ranks.first:
        wait_for(marker.exists)
        with pytest.raises(TrainingError, match="has ended"):
            ranks.call({"code": 0})
            ranks.exchange(1)
        return "ended"
    interrupts.install()
    os.kill(os.getpid(), signal.SIGTERM)
    with pytest.raises(Stopped, match="SIGTERM"):
        ranks.receive(answer_signals=True)
    marker.touch()
    return "stopped"


def test_a_signal_ends_waiting_for_the_first_process(tmp_path: Path) -> None:
    assert together(partial(stopped, tmp_path / "marker")) == ["ended", "stopped"]


def test_one_process_alone_sends_nothing() -> None:
    assert ALONE.exchange(1, 2) == [[1, 2]]
    assert ALONE.gather("text") == ["text"]
    assert ALONE.share(5) == slice(0, 5)
    ALONE.call({"code": 0})
    ALONE.fail(ConfigError("to nobody"))
    assert not ALONE.ended
