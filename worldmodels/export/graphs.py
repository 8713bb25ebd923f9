"""An agent as four functions of tensors: encoder, decoder, one dynamics step, controller.

Shapes are in the letters of docs/shapes.md; B is the number of rows.
"""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor, nn

from worldmodels.agents.folder import Agent
from worldmodels.errors import ArtifactError
from worldmodels.models.controller import Controllers
from worldmodels.models.dynamics import DynamicsModel, State, unweighted

FORMAT = 2
"""Of what the graphs compute and of the file that describes them; in 1 ``termination`` had the odds
that the weight of terminations in training makes larger."""
_WARM_UP = 3
"""Steps of the dynamics model before the state of an example, so that it is no initial one."""


class Graph(nn.Module):
    """A function of tensors whose first dimension is the row.

    Args:
        name: of its file, without the suffix.
        inputs: names of the arguments of `forward`.
        outputs: names of its results.
    """

    def __init__(self, name: str, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> None:
        super().__init__()
        self.name, self.inputs, self.outputs = name, inputs, outputs

    @abstractmethod
    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """The results for arguments in the order of `inputs`."""

    @abstractmethod
    def example(self, rows: int) -> tuple[Tensor, ...]:
        """Arguments of `forward` with so many rows, always the same."""


class EncoderGraph(Graph):
    """``image`` (B, 3, S, S) in [0, 1] -> ``mean`` and ``logvar`` (B, Z).

    Of an encoder that takes clips, ``image`` is (B, C, 3, S, S), the oldest frame first.
    """

    def __init__(self, agent: Agent) -> None:
        super().__init__("encoder", ("image",), ("mean", "logvar"))
        self._encoder = agent.encoder

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """The posterior of images or clips."""
        (image,) = inputs
        return tuple(self._encoder.encode(image))

    def example(self, rows: int) -> tuple[Tensor, ...]:
        """Random images or clips."""
        side, length = self._encoder.frame_size, self._encoder.clip_length
        clip = () if length == 1 else (length,)
        return (torch.rand(rows, *clip, 3, side, side, generator=_generator(rows)),)


class DecoderGraph(Graph):
    """``latent`` (B, Z) -> ``image`` (B, 3, S, S) in [0, 1]."""

    def __init__(self, agent: Agent) -> None:
        super().__init__("decoder", ("latent",), ("image",))
        self._encoder = agent.encoder.for_inference()

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Images of latents."""
        (latent,) = inputs
        return (self._encoder.decode(latent),)

    def example(self, rows: int) -> tuple[Tensor, ...]:
        """Latents of the prior."""
        return (torch.randn(rows, self._encoder.latent_size, generator=_generator(rows)),)


class DynamicsGraph(Graph):
    """One step of the dynamics model, with a sample of the next latent.

    ``latent`` (B, Z), ``action`` (B, A), ``uniform`` in [0, 1) and standard ``normal`` (B, Z),
    ``temperature`` () and the parts of the state, ``state_0`` and so on -> ``next_latent`` (B, Z),
    ``reward`` (B,), ``termination`` (B,), the probability that the episode ends
    (`worldmodels.models.dynamics.unweighted`), and ``next_state_0`` and so on. `DreamWorld` ends it
    where that is above `worldmodels.models.dynamics.termination_threshold`.
    """

    def __init__(self, agent: Agent) -> None:
        states = state_names(agent.dynamics)
        super().__init__(
            "dynamics",
            ("latent", "action", "uniform", "normal", "temperature", *states),
            ("next_latent", "reward", "termination", *(f"next_{name}" for name in states)),
        )
        self._agent, self._dynamics = agent, agent.dynamics

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """The results of a step."""
        latent, action, uniform, normal, temperature, *state = inputs
        after = self._dynamics.advance(latent, action, tuple(state))
        prediction = self._dynamics.predict(after)
        sampled = prediction.latent.sample(uniform, normal, temperature)
        termination = torch.sigmoid(unweighted(self._dynamics, prediction.termination))
        return (sampled, prediction.reward, termination, *after)

    def example(self, rows: int) -> tuple[Tensor, ...]:
        """Random latents, actions and numbers, a state that is no initial one."""
        latent, action, state = _some_step(self._agent, rows)
        uniform = torch.rand(latent.shape, generator=_generator(rows))
        return (latent, action, uniform, latent.flip(1), torch.tensor(1.25), *state)


class ControllerGraph(Graph):
    """``latent`` (B, Z), ``previous_action`` (B, A), ``state_0`` and so on -> ``action`` (B, A).

    The state is the one before the step of that action; the first previous action is zeros.
    """

    _controller: Tensor

    def __init__(self, agent: Agent) -> None:
        inputs = ("latent", "previous_action", *state_names(agent.dynamics))
        super().__init__("controller", inputs, ("action",))
        self._agent, self._dynamics = agent, agent.dynamics
        self._count = agent.config.features.size(agent.dynamics.latent_size, agent.dynamics)
        self.register_buffer("_controller", torch.from_numpy(agent.parameters))

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """The actions."""
        latent, previous_action, *state = inputs
        config = self._agent.config
        features = config.features.features(latent, previous_action, tuple(state), self._dynamics)
        parameters = self._controller.expand(latent.shape[0], -1)
        return (Controllers(parameters, self._count, config.controller).act(features),)

    def example(self, rows: int) -> tuple[Tensor, ...]:
        """Random latents and actions, a state that is no initial one."""
        latent, action, state = _some_step(self._agent, rows)
        return (latent, action, *state)


def graphs_of(agent: Agent) -> list[Graph]:
    """The four graphs of an agent, whose models are in float32 on the CPU."""
    return [EncoderGraph(agent), DecoderGraph(agent), DynamicsGraph(agent), ControllerGraph(agent)]


def state_names(dynamics: DynamicsModel) -> tuple[str, ...]:
    """Names of the parts of a dynamics model's state: ``state_0`` and so on."""
    return tuple(f"state_{number}" for number in range(len(dynamics.initial_state(1))))


@torch.no_grad()
def _some_step(agent: Agent, rows: int) -> tuple[Tensor, Tensor, State]:
    """Latents (B, Z) and actions (B, A) of a step, and the state before it.

    Raises:
        ArtifactError: a part of the state changes its shape or type from step to step.
    """
    generator, state = _generator(rows), agent.dynamics.initial_state(rows)
    bounds = agent.config.actions.bounds
    low, high = torch.tensor(bounds.low), torch.tensor(bounds.high)
    for _ in range(_WARM_UP):
        latent = torch.randn(rows, agent.dynamics.latent_size, generator=generator)
        action = low + (high - low) * torch.rand(rows, len(low), generator=generator)
        before, state = state, agent.dynamics.advance(latent, action, state)
        for old, new in zip(before, state, strict=True):
            if (old.shape, old.dtype) != (new.shape, new.dtype):
                raise ArtifactError(
                    f"a part of the dynamics model's state is {new.dtype} {tuple(new.shape)} after"
                    f" {old.dtype} {tuple(old.shape)}; a graph needs one shape and type"
                )
    return latent, action, state


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)
