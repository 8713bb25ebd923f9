"""One environment, step by step, and what an agent makes of it: pictures, expectations, influences.

Shapes are in the letters of docs/shapes.md: A action, F features, S side of a frame.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from worldmodels.agents.folder import Agent
from worldmodels.envs.action_spec import ActionSpec, actions_of
from worldmodels.envs.engines import make_vector_env
from worldmodels.envs.observation import pictures_of
from worldmodels.errors import ConfigError
from worldmodels.models.controller import Controllers
from worldmodels.models.dynamics import unweighted
from worldmodels.models.features import FeatureSpec
from worldmodels.reporting.pictures import decode
from worldmodels.worlds.real import RealWorld
from worldmodels.worlds.specs import RealWorldSpec
from worldmodels.worlds.world import Step

FRAMES_PER_SECOND = 30.0
"""Of an environment whose metadata name no rate."""
STRONGEST = 5
"""Features that are shown for each action."""


class Influence(NamedTuple):
    """What a feature adds to an output of the controller.

    Args:
        feature: its name: z1 is the first number of the latent, h1 of the hidden state.
        amount: weight times feature; see `Controllers.influences`.
    """

    feature: str
    amount: float


@dataclass(frozen=True)
class Insight:
    """What the models make of one moment.

    Args:
        frame: that the encoder takes, uint8 (S, S, 3).
        reconstruction: of that frame, uint8 (S, S, 3).
        expected: the next frame, which the decoder draws of the likeliest latent after the action;
            uint8 (S, S, 3). None where the episode has ended.
        termination: probability, by the dynamics model, that the action ends the episode.
        influences: for each action those of the `STRONGEST` features, the strongest first.
    """

    frame: np.ndarray
    reconstruction: np.ndarray
    expected: np.ndarray | None
    termination: float
    influences: tuple[tuple[Influence, ...], ...]


class Game:
    """An episode of an environment, which an agent's models follow.

    `RealWorld` computes the features in a batch of one, so that an episode that the controller
    alone drives is that of ``stage=evaluate`` with the same seed.

    Args:
        spec: the environment and the files of the models that make the features.
        agent: whose controller acts; None for an environment without models.

    Raises:
        ConfigError: the environment cannot be made, or has other actions than the agent.
        ArtifactError: a file of a model is missing or damaged.
    """

    def __init__(self, spec: RealWorldSpec, agent: Agent | None) -> None:
        # Rewards that are not finite are shown; the episode is then not recorded.
        self._env = make_vector_env(spec.env, 1, device=spec.device, finite_rewards=False)
        try:
            self.actions: ActionSpec = actions_of(self._env)
            """The environment's own actions; their bounds are those of the controller's."""
            if agent is not None and agent.config.actions != self.actions:
                raise ConfigError(
                    f"env.id={spec.env.id}: its actions are {self.actions}, the agent's are"
                    f" {agent.config.actions}; choose the env that it was trained in"
                )
            self.world = RealWorld(lambda num_envs: self._env, spec.perception())
        except Exception:
            self._env.close()
            raise
        self.rate = float(self._env.metadata.get("render_fps") or FRAMES_PER_SECOND)
        """Steps per second."""
        self._models = None if agent is None else _Models(agent, self.world.device)

    def begin(self, seed: int) -> None:
        """Start the episode of a seed."""
        self.seed, self.time, self.reward, self.total = seed, 0, 0.0, 0.0
        self.terminated = self.truncated = False
        self._features = self.world.reset([seed])
        if self._models is not None:
            self._models.begin()

    @property
    def ended(self) -> bool:
        """Whether the episode has ended."""
        return self.terminated or self.truncated

    @property
    def picture(self) -> np.ndarray:
        """What the environment shows, as its engine draws it: uint8 (H, W, 3)."""
        pictures = pictures_of(self._env)
        picture: np.ndarray = (self.world.frames if pictures is None else pictures)[0]
        return picture

    def choose(self) -> np.ndarray:
        """The controller's action, (A,) float32; a game without an agent has none."""
        assert self._models is not None
        return self._models.act(self._features)

    def step(self, action: np.ndarray) -> Step:
        """Take a step with an action (A,) within the bounds; the episode must not have ended."""
        actions = torch.from_numpy(action)[None].to(self.world.device)
        if self._models is not None:
            self._models.advance(self.world.latents, actions)
        step = self.world.step(actions)
        self._features = step.features
        self.time += 1
        self.reward = float(step.reward[0])
        self.total += self.reward
        self.terminated, self.truncated = bool(step.terminated[0]), bool(step.truncated[0])
        return step

    def insight(self, action: np.ndarray) -> Insight | None:
        """What the agent's models make of this moment, if there is an agent.

        Args:
            action: the next one, (A,), which the expected frame follows.
        """
        if self._models is None:
            return None
        actions = None if self.ended else torch.from_numpy(action)[None]
        return self._models.insight(
            self.world.frames[0].copy(), self.world.latents.cpu(), self._features, actions
        )

    def close(self) -> None:
        """Close the environment."""
        self.world.close()


class _Models:
    """An agent's models beside its world: the controller on the world's device, and on the CPU
    what only a person looks at."""

    def __init__(self, agent: Agent, device: torch.device) -> None:
        self._encoder, self._dynamics = agent.encoder.eval(), agent.dynamics.eval()
        spec = agent.config.features
        size = spec.size(agent.encoder.latent_size, agent.dynamics)
        parameters = torch.from_numpy(agent.parameters)[None].to(device)
        self._controller = Controllers(parameters, size, agent.config.controller)
        self._names = feature_names(agent, spec)

    def begin(self) -> None:
        self._state = self._dynamics.initial_state(1)

    @torch.inference_mode()
    def act(self, features: Tensor) -> np.ndarray:
        action: np.ndarray = self._controller.act(features)[0].cpu().numpy()
        return action

    @torch.inference_mode()
    def advance(self, latents: Tensor, actions: Tensor) -> None:
        self._state = self._dynamics.advance(latents.cpu(), actions.cpu(), self._state)

    @torch.inference_mode()
    def insight(
        self, frame: np.ndarray, latents: Tensor, features: Tensor, actions: Tensor | None
    ) -> Insight:
        shown, termination = [latents], 0.0
        if actions is not None:
            state = self._dynamics.advance(latents, actions, self._state)
            prediction = self._dynamics.predict(state)
            shown.append(prediction.latent.mode())
            logit = unweighted(self._dynamics, prediction.termination[0])
            termination = float(torch.sigmoid(logit))
        pictures = decode(self._encoder, torch.cat(shown))
        return Insight(
            frame=frame,
            reconstruction=pictures[0],
            expected=None if actions is None else pictures[1],
            termination=termination,
            influences=self._strongest(self._controller.influences(features)[0].cpu()),
        )

    def _strongest(self, influences: Tensor) -> tuple[tuple[Influence, ...], ...]:
        """Of influences (F, A), those of the strongest features on each action."""
        chosen = influences.abs().topk(min(STRONGEST, len(influences)), dim=0).indices  # (k, A)
        return tuple(
            tuple(Influence(self._names[row], float(influences[row, action])) for row in rows)
            for action, rows in enumerate(chosen.T.tolist())
        )


def feature_names(agent: Agent, spec: FeatureSpec) -> list[str]:
    """The names of an agent's features, in their order: z1, z2, ..., then h1 and so on."""
    sizes = {"z": agent.encoder.latent_size}
    sizes |= {name: agent.dynamics.state_features[name] for name in spec.state}
    return [f"{name}{number + 1}" for name, size in sizes.items() for number in range(size)]
