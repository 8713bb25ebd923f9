"""The folder of an exported agent: four ONNX graphs, first latents, and their description."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save as serialize

from worldmodels.agents.folder import fingerprint, read_agent
from worldmodels.agents.model_files import load_first_latents
from worldmodels.agents.registry import name_of
from worldmodels.export.controls import controls_of
from worldmodels.export.graphs import FORMAT, graphs_of, state_names
from worldmodels.export.onnx_files import TOLERANCE, write_graph
from worldmodels.files.atomic import atomic_path, write_json
from worldmodels.files.untrusted import printable
from worldmodels.models.dynamics import termination_threshold
from worldmodels.runs.tracking import say

DESCRIPTION = "export.json"
STARTS = "starts.safetensors"


def write_onnx(folder: Path, source: Path, name: str, temperature: float) -> list[str]:
    """Write an agent as ONNX.

    ``encoder.onnx``, ``decoder.onnx``, ``dynamics.onnx`` and ``controller.onnx`` are the graphs of
    `worldmodels.export.graphs`. ``starts.safetensors`` has the first latents of recorded episodes,
    ``mean`` and ``logvar`` (episodes, Z), and the initial state, ``state_0`` and so on (1, ...).
    ``export.json`` describes them. Of an ensemble, ``dynamics.onnx`` is the first member.

    Args:
        folder: to write to; made if it is missing.
        source: folder of the agent.
        name: of the agent, for people.
        temperature: at which the page samples at first.

    Returns:
        the names of the files.

    Raises:
        ArtifactError: a file of the agent is missing or damaged, or its models cannot be exported.
    """
    agent, first = read_agent(source), load_first_latents(source / "rnn.safetensors")
    agent.encoder.eval()
    if agent.others:
        say(f"export: the dynamics model is the first of {1 + len(agent.others)} members")
    folder.mkdir(parents=True, exist_ok=True)
    graphs = {
        graph.name: write_graph(folder / f"{graph.name}.onnx", graph) for graph in graphs_of(agent)
    }
    states = state_names(agent.dynamics)
    begin = {key: torch.from_numpy(rows) for key, rows in vars(first).items()}
    begin |= dict(zip(states, agent.dynamics.initial_state(1), strict=True))
    content = serialize(begin)
    with atomic_path(folder / STARTS) as temporary:
        temporary.write_bytes(content)
    description: dict[str, Any] = {
        "format": FORMAT,
        "name": printable(name, 200),
        "environment": agent.config.env_id,
        "agent": fingerprint(source),
        "encoder": name_of(agent.encoder),
        "dynamics": name_of(agent.dynamics),
        "latent_size": agent.encoder.latent_size,
        "frame_size": agent.encoder.frame_size,
        "clip_length": agent.encoder.clip_length,
        "action_size": agent.dynamics.action_size,
        "actions": asdict(agent.config.actions),
        "bounds": asdict(agent.config.actions.bounds),
        "controls": asdict(controls_of(agent.config.env_id, agent.config.actions.bounds)),
        "temperature": temperature,
        "frame_skip": agent.config.frame_skip,
        "samples_first_latents": agent.config.features.sampled,
        "predicts_reward": agent.dynamics.predicts_reward,
        "termination_threshold": termination_threshold(agent.dynamics),
        "states": states,
        "starts": len(first.mean),
        "tolerance": TOLERANCE,
        "graphs": graphs,
    }
    write_json(folder / DESCRIPTION, description)
    return [DESCRIPTION, STARTS, *(graph["file"] for graph in graphs.values())]
