"""The processes of a training above rank 0: they train when rank 0 calls, and do nothing else.

They read files but write none, and print nothing: an error is sent to rank 0, which prints it. They
run here whether torchrun or srun has started them, with the words of the command (`follow`), or
rank 0 itself, for the duration of one stage (``python -m worldmodels.stages.follower``).
"""

from __future__ import annotations

import os
import sys
import threading
import traceback
from typing import TYPE_CHECKING

from worldmodels.errors import EXIT_ERROR, EXIT_STOPPED, Stopped
from worldmodels.system import interrupts

if TYPE_CHECKING:
    from worldmodels.config.schema import Config
    from worldmodels.training.ranks import Ranks


def follow(config: Config) -> int:
    """Train with rank 0 until its command ends; for a process of torchrun or srun.

    Args:
        config: that of the command.

    Returns:
        the exit code, that of rank 0.
    """
    from worldmodels.stages.runtime import Runtime
    from worldmodels.training import launch

    with launch.connected(Runtime(config).device) as ranks:
        return _serve(ranks, answer_signals=True, debug=config.debug)


def _serve(ranks: Ranks, answer_signals: bool, debug: bool) -> int:
    """Do what rank 0 calls for; the exit code."""
    from worldmodels.config.schema import Config, changed
    from worldmodels.runs.tracking import console
    from worldmodels.stages import rnn, vae

    stages = {"vae": vae, "rnn": rnn}
    with open(os.devnull, "w") as nowhere:
        console.file = nowhere
        try:
            while "stage" in (called := ranks.receive(answer_signals)):
                config = changed(Config(), called["config"])
                debug = config.debug
                stages[called["stage"]].join(config, called, ranks)
        except Stopped:
            return EXIT_STOPPED
        except Exception as error:
            ranks.fail(error)
            if debug:
                traceback.print_exc()
            return EXIT_ERROR
    return int(called["code"])


def _end_with_rank_0() -> None:
    """End this process when rank 0, which holds the other end of standard input, has ended."""
    sys.stdin.buffer.read()
    os._exit(EXIT_ERROR)


def main() -> int:
    """The process that rank 0 has started; see `worldmodels.training.launch`."""
    interrupts.install()
    threading.Thread(target=_end_with_rank_0, daemon=True).start()
    import torch

    from worldmodels.stages import rnn, vae  # noqa: F401, before rank 0 waits in a collective
    from worldmodels.training import launch

    rank, size, port = (int(word) for word in sys.argv[1:4])
    print("ready", flush=True)
    device = torch.device(sys.argv[4])
    with launch.joined(rank, size, port, device) as ranks:
        return _serve(ranks, answer_signals=False, debug=False)


if __name__ == "__main__":
    sys.exit(main())
