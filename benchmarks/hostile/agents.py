"""Agents of other origin, damaged or built to do harm."""

from __future__ import annotations

import functools
import json
import os
import shutil
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from harness import (
    HUNG,
    REFUSAL_BYTES,
    REFUSAL_SECONDS,
    Bench,
    Case,
    Surroundings,
    content,
    fault,
    record,
    run,
    smoke_command,
    unprintable,
)


def agents(bench: Bench, folder: Path) -> Iterator[Case]:
    """Agents of other origin, in little memory."""
    for harm in (
        *(_huge_sizes, _huge_header, _wrong_tensors, _agent_pipe, _agent_endless, _deep_json),
        *(_escapes, _number_for_object, _nan_parameters, _huge_hidden, _unknown_key, _empty_agent),
    ):
        check = functools.partial(_hostile_agent, bench, harm)
        yield Case("agents", harm.__name__.strip("_").replace("_", " "), check)


def _hostile_agent(bench: Bench, harm: Callable[[Path], None], folder: Path) -> str | None:
    agent = folder / "agent"
    shutil.copytree(bench.smoke / "smoke/controller/agent", agent)
    data = folder / "data"
    harm(agent)
    words = smoke_command("stage=evaluate", f"model={agent}")
    done = run(data, *words, around=Surroundings(memory=REFUSAL_BYTES), timeout=45)
    if done.seconds > REFUSAL_SECONDS and done.code != HUNG:
        return f"took {done.seconds:.0f} s"
    if harm is _escapes and done.code == 0:  # a name that only a message would show
        return unprintable(done)
    wrong = fault(done, folder, str(agent), "agent.json", "safetensors")
    if wrong is None and content(data):
        return f"made {', '.join(content(data))}"
    return wrong


def _rewrite_tree(path: Path, change: Callable[[dict[str, object]], object]) -> None:
    """Change the header of a safetensors file."""
    data = path.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + size])
    change(header)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + size :])


def _set(path: Path, old: str, new: str) -> None:
    def change(header: dict[str, object]) -> None:
        metadata = header["__metadata__"]
        assert isinstance(metadata, dict)
        before = metadata["tree"]
        metadata["tree"] = before.replace(old, new)
        assert metadata["tree"] != before

    _rewrite_tree(path, change)


def _huge_sizes(agent: Path) -> None:
    _set(
        agent / "vae.safetensors",
        '["latent_size", {"value": 32}]',
        '["latent_size", {"value": 1000000000}]',
    )


def _huge_hidden(agent: Path) -> None:
    _set(
        agent / "rnn.safetensors",
        '["hidden_size", {"value": 32}]',
        '["hidden_size", {"value": 1000000}]',
    )


def _huge_header(agent: Path) -> None:
    path = agent / "vae.safetensors"
    path.write_bytes(struct.pack("<Q", 2**62) + path.read_bytes()[8:])


def _wrong_tensors(agent: Path) -> None:
    shutil.copy(agent / "rnn.safetensors", agent / "vae.safetensors")


def _agent_pipe(agent: Path) -> None:
    (agent / "vae.safetensors").unlink()
    os.mkfifo(agent / "vae.safetensors")


def _agent_endless(agent: Path) -> None:
    (agent / "agent.json").unlink()
    (agent / "agent.json").symlink_to("/dev/zero")


def _deep_json(agent: Path) -> None:
    (agent / "agent.json").write_text("[" * 200_000)


def _record(agent: Path, **values: object) -> None:
    path = agent / "agent.json"
    path.write_text(json.dumps(record(path) | values))


def _escapes(agent: Path) -> None:
    _record(agent, env_id="\x1b]0;title\x07\x1b[2J\nNo-v0")


def _number_for_object(agent: Path) -> None:
    (agent / "agent.json").write_text("5")


def _unknown_key(agent: Path) -> None:
    _record(agent, further="\x1b[2J")


def _empty_agent(agent: Path) -> None:
    (agent / "controller.safetensors").write_bytes(b"")


def _nan_parameters(agent: Path) -> None:
    path = agent / "controller.safetensors"
    data = bytearray(path.read_bytes())
    data[-4:] = np.array([np.nan], np.float32).tobytes()
    path.write_bytes(data)
