"""Agents on the Hugging Face Hub: exported, fetched, and one line where that is not possible."""

import importlib.util
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import composed, error_line, run
from hub import COMMIT, Hub, serving
from omegaconf import OmegaConf

import worldmodels
from worldmodels import extras
from worldmodels.agents.folder import fingerprint, read_agent, write_agent
from worldmodels.agents.hub import fetch
from worldmodels.agents.model_files import load_first_latents
from worldmodels.config import limits
from worldmodels.errors import ArtifactError, ConfigError
from worldmodels.export.hub import copy_agent
from worldmodels.files.atomic import read_json
from worldmodels.reporting.card import Evaluated, Trained, card
from worldmodels.reporting.records import read_record, read_scores
from worldmodels.runs.integrity import IMPORTED

PRETRAINED = Path(__file__).resolve().parent.parent / "pretrained"
NAME = "someone/racer"


def test_a_run_is_exported_with_its_scores_and_read_back(copy: Path) -> None:
    words = ("stage=export", "format=huggingface", "run=smoke")
    done = run(copy, *words)
    assert done.returncode == 0, done.stderr
    folder = copy / "smoke" / "export" / "huggingface"
    original = copy / "smoke" / "controller" / "agent"
    assert fingerprint(folder) == fingerprint(original)
    assert np.array_equal(
        worldmodels.load_agent(folder).parameters, worldmodels.load_agent(original).parameters
    )
    assert (folder / "dream.png").read_bytes().startswith(b"\x89PNG")
    _, metadata, text = (folder / "README.md").read_text().split("---\n", 2)
    described: Any = OmegaConf.to_container(OmegaConf.create(metadata))
    scores = read_json(copy / "smoke" / "evaluate" / "scores.json")
    (result,) = described["model-index"][0]["results"]
    mean, std = (scores["agent"][name] for name in ("mean", "std"))
    assert result["metrics"][0]["value"] == f"{mean:.2f} +/- {std:.2f}"
    first, *_, last = scores["agent"]["seeds"]
    assert f"(seeds {first} to {last})" in text
    assert "CarRacing-v3 (gymnasium), 40 steps at most" in text.replace("\n", " ")
    assert "| controller | 1 |" in text
    config = read_json(folder / "config.json")
    assert config["agent"] == fingerprint(original)
    assert config["dynamics"]["hidden_size"] == config["training"]["rnn"]["rnn.hidden_size"] == 32
    assert "done before" in run(copy, *words).stdout


def test_a_file_that_is_no_part_of_an_agent_is_neither_hashed_nor_exported(tmp_path: Path) -> None:
    """As the one of a value function, which agents no longer have."""
    shutil.copytree(PRETRAINED / "takecover", tmp_path / "agent")
    (tmp_path / "agent" / "value.safetensors").write_bytes(bytes(8))
    assert fingerprint(tmp_path / "agent") == fingerprint(PRETRAINED / "takecover")
    copied = copy_agent(tmp_path / "agent", tmp_path / "copy")
    assert set(copied) == {path.name for path in (tmp_path / "copy").iterdir()}
    shipped = {path.name for path in (PRETRAINED / "takecover").iterdir()}
    assert set(copied) == shipped - {"README.md"}


def test_the_card_of_an_agent_without_scores_says_so(tmp_path: Path) -> None:
    words = ("stage=export", "format=huggingface", "run=r", "model=pretrained/takecover")
    done = run(tmp_path, *words)
    assert done.returncode == 0, done.stderr
    assert "run stage=evaluate run=r first" in done.stdout
    text = (tmp_path / "r" / "export" / "huggingface" / "README.md").read_text()
    assert "Not measured." in text
    assert "model-index" not in text


def test_the_card_of_imported_episodes_does_not_say_that_their_seeds_are_others(
    smoke: Path,
) -> None:
    run = smoke / "smoke"
    agent = read_agent(run / "controller" / "agent")
    scores = list(read_scores(run / "evaluate" / "scores.json").values())
    evaluated = Evaluated(scores, read_record(run / "evaluate" / "manifest.json"))
    manifest = read_record(run / "rollouts" / "manifest.json")
    claim = "the seeds of training and of selection are others"
    assert claim in card("it", agent, [Trained("rollouts", 1, manifest)], evaluated, 1.0)
    manifest.fields["config"]["rollouts.policy"] = IMPORTED
    text = card("it", agent, [Trained("rollouts", 1, manifest)], evaluated, 1.0)
    assert claim not in text
    assert "those of the imported episodes that it was\ntrained on may be among them" in text


def test_the_names_of_policies_are_text_in_the_card(smoke: Path) -> None:
    run = smoke / "smoke"
    (score, *_) = read_scores(run / "evaluate" / "scores.json").values()
    name = "<img src=x> | [link](http://x)\n# title"
    evaluated = Evaluated(
        [replace(score, name=name)], read_record(run / "evaluate" / "manifest.json")
    )
    text = card("it", read_agent(run / "controller" / "agent"), [], evaluated, 1.0)
    assert "\\<img src=x\\> \\| \\[link\\](http://x)\\\\n# title |" in text
    assert "<img" not in text.replace("\\<img", "")


# From the Hub


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A Hub with the shipped agent, and with a large file that is no part of it."""
    pytest.importorskip("huggingface_hub", reason="huggingface_hub is not installed")
    folder = tmp_path / "repository"
    shutil.copytree(PRETRAINED / "carracing", folder)
    (folder / "optimizer.bin").write_bytes(bytes(1000))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    fetch.cache_clear()
    with serving() as server:
        server.repositories[NAME] = folder
        monkeypatch.setenv("HF_ENDPOINT", server.address)
        yield server
    fetch.cache_clear()


def test_an_agent_is_fetched_once_and_only_its_files(hub: Hub) -> None:
    agent = worldmodels.load_agent(f"hf://{NAME}@main")
    ours = worldmodels.load_agent("pretrained/carracing")
    frame = np.random.default_rng(0).integers(0, 256, (96, 96, 3), np.uint8)
    assert np.array_equal(agent.act(frame), ours.act(frame))
    assert fingerprint(agent.folder) == fingerprint(ours.folder)
    parts = {"controller.safetensors", "pca_subspace.safetensors", "rnn.safetensors"}
    assert set(hub.sent) == {*parts, "vae.safetensors", "agent.json"}
    assert hub.sent[-1] == "agent.json"
    fetch.cache_clear()
    worldmodels.load_agent(f"hf://{NAME}")
    assert len(hub.sent) == 5
    hub.repositories.clear()
    fetch.cache_clear()
    assert worldmodels.load_agent(f"hf://{NAME}@{COMMIT}").folder == agent.folder


def test_a_stage_resolves_a_revision_and_its_manifest_has_the_commit(
    hub: Hub, tmp_path: Path
) -> None:
    words = ("stage=export", "format=huggingface", "run=r", f"model=hf://{NAME}@main")
    done = run(tmp_path, *words)
    assert done.returncode == 0, done.stderr
    manifest = read_json(tmp_path / "r" / "export" / "huggingface" / "manifest.json")
    assert manifest["hub"] == {"model": f"hf://{NAME}@{COMMIT}"}
    assert manifest["inputs"]["agent"] == fingerprint(PRETRAINED / "carracing")


def test_the_agent_of_base_may_be_on_the_hub(hub: Hub, tmp_path: Path) -> None:
    words = ("stage=rollouts", "preset=smoke", f"base=hf://{NAME}", "workers.processes=0")
    done = run(tmp_path, *words, "rollouts.policy=controller", "rollouts.max_steps=5")
    assert done.returncode == 0, done.stderr
    manifest = read_json(tmp_path / "smoke" / "rollouts" / "manifest.json")
    assert manifest["hub"] == {"base": f"hf://{NAME}@{COMMIT}"}


def _no_agent(hub: Hub) -> None:
    (hub.repositories[NAME] / "agent.json").unlink()


def _state(name: str, size: int | None) -> Callable[[Hub], None]:
    return lambda hub: hub.sizes.update({name: size})


def _other_weights(hub: Hub) -> None:
    folder = hub.repositories[NAME]
    agent, first = read_agent(folder), load_first_latents(folder / "rnn.safetensors")
    record = (folder / "agent.json").read_bytes()
    agent.parameters[:] += 1
    write_agent(folder, agent, first)
    (folder / "agent.json").write_bytes(record)


@pytest.mark.parametrize(
    ("address", "edit", "problem"),
    [
        ("someone/else", None, "there is no such repository"),
        (f"{NAME}@v2", None, "the repository has no such revision; give one of its commits"),
        (NAME, _no_agent, r"has no trained agent \(agent.json is missing\)"),
        (NAME, _state("vae.safetensors", 2**40), "vae.safetensors has 1,099,511,627,776 bytes"),
        (NAME, _state("agent.json", 2**21), "agent.json has 2,097,152 bytes, at most 1,048,576"),
        (NAME, _state("rnn.safetensors", None), "rnn.safetensors has no size"),
        (NAME, _state("rnn.safetensors", 17), "rnn.safetensors has other bytes than the Hub state"),
        (NAME, _other_weights, r"is not the file that agent.json names \(SHA-256\)"),
    ],
)
def test_what_the_hub_does_not_have_is_one_line(
    hub: Hub, address: str, edit: Callable[[Hub], None] | None, problem: str
) -> None:
    if edit is not None:
        edit(hub)
    with pytest.raises((ConfigError, ArtifactError), match=problem) as caught:
        worldmodels.load_agent(f"hf://{address}")
    assert "\n" not in str(caught.value)


def test_without_a_network_an_address_is_one_line(hub: Hub, tmp_path: Path) -> None:
    with serving() as other:
        closed = other.address
    variables = {"HF_ENDPOINT": closed}
    words = ("stage=evaluate", "preset=smoke", f"model=hf://{NAME}@{COMMIT}")
    line = error_line(run(tmp_path, *words, variables=variables))
    assert line.startswith(f"error: model=hf://{NAME}@{COMMIT}: cannot be fetched (")
    assert line.endswith("connect to a network, or give the folder of an agent")
    assert not (tmp_path / "smoke").exists()


@pytest.mark.parametrize(
    "address", ["hf://racer", "hf://a/b/c", "hf://a/../b", "hf://a/b@", "hf://"]
)
def test_an_address_of_another_form_is_one_line(address: str) -> None:
    with pytest.raises(ConfigError, match="no address on the Hub; give hf://owner/name@revision"):
        limits.check(composed(f"model='{address}'"))


def test_without_the_package_the_line_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        extras, "find_spec", lambda name: None if name == "huggingface_hub" else found(name)
    )
    with pytest.raises(ConfigError, match=r"pip install 'worldmodels-gym\[hub\]'"):
        worldmodels.load_agent("hf://nobody/nothing")
