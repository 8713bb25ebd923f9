"""World Models (Ha & Schmidhuber, 2018): VAE encoder, MDN-RNN dynamics model, CMA-ES controller.

The names of `__all__` are the Python interface. They are imported when they are first used, so that
importing the package takes no time.
"""

import os
from typing import TYPE_CHECKING, Any

from worldmodels.system.threads import share_cores
from worldmodels.version import __version__

if TYPE_CHECKING:
    from worldmodels.api import (
        Evaluation,
        evaluate,
        load_agent,
        load_episodes,
        make_dream,
        make_env,
    )
    from worldmodels.policy import AgentPolicy

__all__ = [
    "AgentPolicy",
    "Evaluation",
    "__version__",
    "evaluate",
    "load_agent",
    "load_episodes",
    "make_dream",
    "make_env",
]

share_cores(os.environ)


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from worldmodels import api

    return getattr(api, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
