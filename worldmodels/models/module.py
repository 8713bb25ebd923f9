"""What encoders and dynamics models share: parts of `torch.nn.Module`, and for checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Protocol, Self


class Module(Protocol):
    """A `torch.nn.Module` that a checkpoint can describe.

    Args:
        Options: a dataclass: the arguments that a configuration chooses, typed, with defaults.
        FORMAT: of its checkpoints; another number is another meaning of sizes or tensors.
    """

    Options: ClassVar[type]
    FORMAT: ClassVar[int]

    @property
    def sizes(self) -> Mapping[str, Any]:
        """The arguments that build an equal module: numbers, truths and short texts."""
        ...

    def to(self, *args: Any, **kwargs: Any) -> Self:
        """See `torch.nn.Module.to`."""
        ...

    def eval(self) -> Self:
        """See `torch.nn.Module.eval`."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """See `torch.nn.Module.state_dict`."""
        ...

    def load_state_dict(self, state_dict: Mapping[str, Any], /) -> Any:
        """See `torch.nn.Module.load_state_dict`."""
        ...
