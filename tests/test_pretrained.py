"""The agents that the repository ships."""

import dataclasses
import hashlib
import importlib
import importlib.util
import shutil
from pathlib import Path
from typing import Any

import doom
import numpy as np
import pytest

from worldmodels.agents.folder import PARTS, fingerprint, read_agent
from worldmodels.envs.engines import EnvSpec
from worldmodels.errors import ArtifactError, install
from worldmodels.evolution.fitness import EpisodeSpec, EvalBatch
from worldmodels.files.atomic import read_json, write_json
from worldmodels.worlds.specs import RealWorldSpec

ROOT = Path(__file__).resolve().parent.parent
RUNS = {"carracing": "laptop", "carracing-dream": "dream-1", "takecover": "takecover"}
WHOLE = EnvSpec(engine="native", crop_rows=None, frame_skip=4, max_steps=250)
DOOM = dataclasses.replace(doom.SPEC, frame_skip=4, max_steps=525)


def published(name: str) -> tuple[Path, dict[str, Any]]:
    """The folder of an agent, and what its run left in the results."""
    return ROOT / "pretrained" / name, read_json(ROOT / "docs" / "results" / f"{RUNS[name]}.json")


@pytest.mark.parametrize("name", RUNS)
def test_it_is_the_agent_that_was_judged(name: str) -> None:
    folder, run = published(name)
    converted_from = read_json(folder / "agent.json").get("converted_from")
    evaluated = run["stages"]["evaluate"]["inputs"]["agent"]
    assert evaluated in (fingerprint(folder), converted_from)


@pytest.mark.parametrize("name", RUNS)
def test_it_names_the_sha256_of_each_of_its_files(name: str) -> None:
    folder, _ = published(name)
    named = read_json(folder / "agent.json")["files"]
    assert named.keys() == {part for part in PARTS if (folder / part).exists()}
    for part, digest in named.items():
        assert hashlib.sha256((folder / part).read_bytes()).hexdigest() == digest


def test_an_agent_without_observations_and_actions_is_converted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, _ = published("carracing")
    shutil.copytree(folder, tmp_path / "old")
    record = read_json(folder / "agent.json")
    older = {name: record[name] for name in record if name not in ("observation", "actions")}
    write_json(tmp_path / "old/agent.json", older)
    with pytest.raises(ArtifactError, match=r"convert the agent \(tools/convert_agent.py\)"):
        read_agent(tmp_path / "old")
    monkeypatch.syspath_prepend(ROOT / "tools")
    importlib.import_module("convert_agent").convert(tmp_path / "old", tmp_path / "new", None)
    origin = record.get("converted_from") or fingerprint(tmp_path / "old")
    described = record | {"frame_skip": 1, "converted_from": origin}
    assert read_json(tmp_path / "new/agent.json") == described


@pytest.mark.parametrize("name", RUNS)
def test_it_is_small_enough_for_git(name: str) -> None:
    folder, _ = published(name)
    assert sum(path.stat().st_size for path in folder.iterdir()) <= 12e6


@pytest.mark.parametrize(
    ("name", "spec", "count", "steps"),
    [
        pytest.param(*("carracing", EnvSpec(engine="native"), 8, 1000), marks=pytest.mark.system),
        pytest.param(*("carracing", EnvSpec(engine="gymnasium"), 1, 1000), marks=pytest.mark.slow),
        pytest.param(*("carracing-dream", WHOLE, 8, 250), marks=pytest.mark.system),
        pytest.param(*("takecover", DOOM, 8, 100), marks=pytest.mark.system),
    ],
)
def test_it_plays_as_its_card_says(name: str, spec: EnvSpec, count: int, steps: int) -> None:
    if name == "takecover" and importlib.util.find_spec("vizdoom") is None:
        pytest.skip(f"ViZDoom is not installed: {install('doom')}")
    folder, run = published(name)
    agent, judged = read_agent(folder), run["scores"]["agent"]
    world = RealWorldSpec(
        spec,
        encoder=folder / "vae.safetensors",
        dynamics=folder / "rnn.safetensors",
        features=agent.config.features,
    ).build()
    seeds = tuple(judged["seeds"][:count])
    episode_spec = EpisodeSpec(count, steps, agent.config.controller)
    batch = EvalBatch(agent.parameters[None], seeds, episode_spec)
    try:
        outcome = batch(world, lambda steps: None)
    finally:
        world.close()
    every = np.array(judged["returns"])
    if name == "takecover":  # a point a step: what an episode cut short would have been worth
        every = np.minimum(every, steps * spec.frame_skip)
    # Rounding differs with the number of environments, and one car in a hundred gets stuck: the
    # median.
    error = 1.25 * every.std(ddof=1) / np.sqrt(count)
    assert abs(np.median(outcome.returns) - np.median(every[:count])) < 4 * error
