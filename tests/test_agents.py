"""A trained agent: evaluated, collecting data, and its models for another controller."""

import dataclasses
import json
import multiprocessing
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from command import ALONE, BRIEFLY, composed, error_line, run
from hostile_agents import CASES, KEEPING_SHA256, judge, record

from worldmodels.agents.folder import fingerprint as fingerprint_of_agent
from worldmodels.agents.folder import read_agent, write_agent
from worldmodels.agents.model_files import load_encoder, load_first_latents
from worldmodels.config import limits
from worldmodels.data.episodes import EpisodeSet
from worldmodels.envs.action_spec import ActionBounds
from worldmodels.envs.observation import ObservationSpec
from worldmodels.errors import ConfigError
from worldmodels.files.atomic import read_json, write_json
from worldmodels.reporting.scores import AGENT_IN_DREAM

ACTIONS = ActionBounds((-1.0, 0.0, 0.0), (1.0, 1.0, 1.0))
SHIPPED = Path(__file__).resolve().parent.parent / "pretrained" / "carracing"
SEARCH = ("stage=controller", "preset=smoke", ALONE)


@pytest.fixture
def agent(along: Path, tmp_path: Path) -> Path:
    """An agent's folder, far from the run that it comes from, which is ``along``."""
    folder = tmp_path / "elsewhere/agent"
    shutil.copytree(along / "along/controller/agent", folder)
    return folder


def fingerprint(folder: Path) -> str:
    return str(read_json(folder / "controller/manifest.json")["fingerprint"])


def test_a_search_on_the_parts_of_an_agent_is_that_on_its_runs(
    along: Path, agent: Path, tmp_path: Path
) -> None:
    again = ("run=again", f"base={agent}", "controller.pca_components=32")
    for stage in ("controller", "evaluate", "report"):
        done = run(tmp_path, f"stage={stage}", "preset=smoke", ALONE, *BRIEFLY, *again)
        assert done.returncode == 0, done.stderr
    assert fingerprint(tmp_path / "again") == fingerprint(along / "along")
    page = (tmp_path / "again/report/index.html").read_text()
    assert "uses the encoder and the dynamics model of a trained agent" in page
    assert "is not finished" not in page


@pytest.mark.system
def test_fewer_components_than_an_agent_has_are_the_leading_ones(
    copy: Path, agent: Path, tmp_path: Path
) -> None:
    for data, base in ((copy, "smoke"), (tmp_path, str(agent))):
        done = run(data, *SEARCH, "controller.pca_components=16", "run=few", f"base={base}")
        assert done.returncode == 0, done.stderr
    assert fingerprint(tmp_path / "few") == fingerprint(copy / "few")


@pytest.mark.system
def test_an_agent_drives_and_gives_its_v_where_a_run_begins_from_it(
    agent: Path, tmp_path: Path
) -> None:
    own = ("rollouts.policy=controller", "vae.epochs=0", "controller.pca_components=40")
    done = run(tmp_path, "stage=all", "preset=smoke", ALONE, *BRIEFLY, f"base={agent}", *own)
    assert done.returncode == 0, done.stderr
    made = {s: read_json(tmp_path / f"smoke/{s}/manifest.json") for s in ("rollouts", "vae", "rnn")}
    assert set(made["rollouts"]["inputs"]) == {"model"}
    assert set(made["vae"]["inputs"]) == {"rollouts", "previous vae"}
    assert made["rnn"]["inputs"]["vae"] == made["vae"]["fingerprint"]
    theirs, ours = read_agent(agent).encoder, load_encoder(tmp_path / "smoke/vae/vae.safetensors")
    assert ours.sizes["folded"]
    for name, tensor in theirs.state_dict().items():
        torch.testing.assert_close(ours.state_dict()[name], tensor, rtol=0, atol=0)
    assert "is not finished" not in (tmp_path / "smoke/report/index.html").read_text()


def test_a_v_of_another_size_cannot_go_on_from_an_agents(agent: Path, tmp_path: Path) -> None:
    base = ("preset=smoke", f"base={agent}", "vae.latent_size=16", ALONE)
    assert run(tmp_path, "stage=rollouts", *base).returncode == 0
    line = error_line(run(tmp_path, "stage=vae", *base))
    assert f"{agent}/vae.safetensors" in line
    assert "vae.*" in line


@pytest.mark.slow
def test_rounds_begin_from_an_agent(agent: Path, tmp_path: Path) -> None:
    words = ("stage=iterate", "preset=smoke", "iterate.rounds=2", "vae.epochs=0", ALONE, *BRIEFLY)
    done = run(tmp_path, *words, f"base={agent}", "rollouts.policy=controller")
    assert done.returncode == 0, done.stderr
    theirs = read_agent(agent).encoder.state_dict()
    for number in (1, 2):
        ours = load_encoder(tmp_path / f"smoke/round-{number}/vae/vae.safetensors").state_dict()
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
    made = read_json(tmp_path / "smoke/round-1/rollouts/manifest.json")
    assert set(made["inputs"]) == {"model"}


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (("controller.pca_components=48",), "has 32 components"),
        (("controller.pca_components=32", "controller.features=z"), "this controller has 32"),
    ],
)
def test_components_that_an_agent_does_not_have_are_refused(
    agent: Path, tmp_path: Path, overrides: tuple[str, ...], said: str
) -> None:
    line = error_line(run(tmp_path, *SEARCH, "run=other", f"base={agent}", *overrides))
    assert said in line
    assert "controller.pca_components=null" in line


def test_components_are_missing_where_a_controller_was_evolved_without(
    smoke: Path, tmp_path: Path
) -> None:
    base = f"base={smoke / 'smoke/controller/agent'}"
    line = error_line(run(tmp_path, *SEARCH, "run=other", base, "controller.pca_components=16"))
    assert "pca_subspace.safetensors is missing" in line


def test_an_agent_that_is_no_runs_own_is_judged_as_in_its_run(
    along: Path, agent: Path, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    shutil.copytree(along, data)
    judge = ("stage=evaluate", "preset=smoke", *BRIEFLY, ALONE)
    for where, words in ((data, ("run=along", "base=smoke")), (tmp_path, (f"base={agent}",))):
        done = run(where, *judge, *words)
        assert done.returncode == 0, done.stderr
    scores = (tmp_path / "smoke/evaluate/scores.json", data / "along/evaluate/scores.json")
    assert read_json(scores[0]) == read_json(scores[1])


@pytest.mark.system
def test_a_controller_without_hidden_state_in_the_dream(
    copy: Path,
) -> None:
    dreamt = ("controller.features=z", "controller.world=dream", "controller.latent=sampled")
    words = ("preset=smoke", "run=z", "base=smoke", ALONE, *BRIEFLY, *dreamt)
    for stage in ("controller", "evaluate", "report"):
        done = run(copy, f"stage={stage}", *words)
        assert done.returncode == 0, done.stderr
    assert AGENT_IN_DREAM in read_json(copy / "z/evaluate/scores.json")
    assert "is not finished" not in (copy / "z/report/index.html").read_text()


def test_a_trained_agent_from_elsewhere_is_evaluated(smoke: Path, tmp_path: Path) -> None:
    shutil.copytree(smoke / "smoke/controller/agent", tmp_path / "agent")
    done = run(
        tmp_path,
        "stage=evaluate",
        "preset=smoke",
        f"model={tmp_path / 'agent'}",
        "evaluate.first_seed=0",
        "evaluate.video=false",
        ALONE,
    )
    assert done.returncode == 0, done.stderr
    theirs = json.loads((smoke / "smoke/evaluate/scores.json").read_text())
    ours = json.loads((tmp_path / "smoke/evaluate/scores.json").read_text())
    assert ours == theirs


def test_a_trained_agent_collects_episodes_with_noise(smoke: Path, tmp_path: Path) -> None:
    model = smoke / "smoke/controller/agent"
    drive = (
        "stage=rollouts",
        "preset=smoke",
        "rollouts.policy=controller",
        f"model={model}",
        ALONE,
    )
    actions = []
    for noise in (0.0, 0.3):
        done = run(tmp_path, *drive, f"rollouts.noise={noise}", f"run=noise-{noise}")
        assert done.returncode == 0, done.stderr
        episodes = EpisodeSet.open([tmp_path / f"noise-{noise}/rollouts"])
        actions.append(np.concatenate([episodes.episode(i).actions for i in range(8)]))
    plain, noisy = actions
    assert (noisy - plain).std() > 0.05
    assert noisy.min() >= -1
    assert noisy.max() <= 1


@pytest.mark.parametrize(
    "stage",
    ["all", "iterate", "bootstrap", "vae", "rnn", "controller", "baseline", "sweep", "plan"],
)
def test_a_stage_that_trains_its_own_agent_refuses_another(stage: str, tmp_path: Path) -> None:
    config = composed(f"stage={stage}", "preset=smoke", f"model={SHIPPED}")
    with pytest.raises(ConfigError, match=f"stage={stage} plays no given agent"):
        limits.check(config)
    if stage == "all":  # the command itself: before it removes or makes anything
        (tmp_path / "a/vae").mkdir(parents=True)
        (tmp_path / "a/vae/kept").touch()
        words = ("stage=all", "preset=smoke", "run=a", f"model={SHIPPED}", "overwrite=true")
        line = error_line(run(tmp_path, *words, ALONE))
        assert line.startswith(f"error: model={SHIPPED}: stage=all plays no given agent")
        assert line.endswith("give base=<agent>, from whose parts training starts")
        assert [path.name for path in tmp_path.rglob("*")] == ["a", "vae", "kept"]


@pytest.mark.parametrize(
    ("stage", "keys"),
    [("rollouts", "model= or base="), ("all", "by base="), ("iterate", "by base=")],
)
def test_a_collection_without_an_agent_names_the_keys_that_give_one(
    stage: str, keys: str, tmp_path: Path
) -> None:
    words = (f"stage={stage}", "preset=smoke", "rollouts.policy=controller", ALONE)
    assert error_line(run(tmp_path, *words)).endswith(keys)


def test_epsilon_is_a_probability(smoke: Path, tmp_path: Path) -> None:
    drive = ("stage=rollouts", "preset=smoke", "rollouts.policy=controller", ALONE)
    model = f"model={smoke / 'smoke/controller/agent'}"
    line = error_line(run(tmp_path, *drive, model, "rollouts.ez_greedy_epsilon=1.5"))
    assert "rollouts.ez_greedy_epsilon=1.5" in line


def test_a_controller_of_another_world_is_refused(agent: Path, tmp_path: Path) -> None:
    whole = read_agent(agent)
    smaller = dataclasses.replace(whole, parameters=whole.parameters[:-3])
    write_agent(tmp_path / "smaller", smaller, load_first_latents(agent / "rnn.safetensors"))
    line = error_line(
        run(tmp_path, "stage=evaluate", "preset=smoke", f"model={tmp_path / 'smaller'}")
    )
    assert "parameters" in line


@pytest.mark.parametrize("key", ["model", "base"])
def test_an_agent_with_other_observations_is_refused_before_the_first_stage(
    key: str, tmp_path: Path
) -> None:
    stage = "stage=evaluate" if key == "model" else "stage=all"
    line = error_line(run(tmp_path, stage, "preset=smoke", f"{key}={SHIPPED}", "env.crop_rows=80"))
    assert f"{key}={SHIPPED}: trained with env.crop_rows=84 env.size=64" in line
    assert line.endswith("give env.crop_rows=84 env.size=64")


def evaluating_whole(agent: Path, folder: Path) -> tuple[str, ...]:
    """The evaluation of the agent, written to `folder` as one that was trained on whole frames."""
    found = read_agent(agent)
    seen = dataclasses.replace(found.config, observation=ObservationSpec(None, 64))
    starts = load_first_latents(agent / "rnn.safetensors")
    write_agent(folder / "whole", dataclasses.replace(found, config=seen), starts)
    return ("stage=evaluate", "preset=smoke", f"model={folder / 'whole'}", *BRIEFLY, ALONE)


def test_an_agent_is_evaluated_with_the_observations_of_its_training(
    agent: Path, tmp_path: Path
) -> None:
    words = evaluating_whole(agent, tmp_path)
    done = run(tmp_path, *words, "run=as-trained")
    assert done.returncode == 0, done.stdout + done.stderr
    given = run(tmp_path, *words, "run=given", "env.crop_rows=null")
    assert given.returncode == 0, given.stdout + given.stderr
    first, second = (
        read_json(tmp_path / name / "evaluate/manifest.json") for name in ("as-trained", "given")
    )
    assert first["config"]["env.crop_rows"] is None
    assert first["fingerprint"] == second["fingerprint"]
    line = error_line(run(tmp_path, *words, "run=other", "env.crop_rows=80"))
    assert line.endswith("give env.crop_rows=null env.size=64")


@pytest.mark.system
def test_a_sweep_evaluates_an_agent_with_its_own_observations(agent: Path, tmp_path: Path) -> None:
    words = evaluating_whole(agent, tmp_path)
    done = run(tmp_path / "data", "--multirun", *words, "seed=1,2", "run=s-${seed}")
    assert done.returncode == 0, done.stdout + done.stderr
    manifests = [read_json(path) for path in tmp_path.glob("data/**/evaluate/manifest.json")]
    assert [manifest["config"]["env.crop_rows"] for manifest in manifests] == [None, None]


# --- agents of strangers


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, str]]:
    """What opening each hostile agent raised: its type and text. One process opens them all."""
    root = tmp_path_factory.mktemp("hostile")
    (root / "agents").mkdir()
    plain, old = root / "plain", root / "old"
    shutil.copytree(SHIPPED, plain)
    shutil.copytree(SHIPPED, old)
    whole = read_json(old / "agent.json")
    del whole["files"]  # or the SHA-256s would hide what else is wrong
    write_json(old / "agent.json", whole)
    for name, damage in CASES.items():
        folder = root / "agents" / name
        shutil.copytree(plain if name in KEEPING_SHA256 else old, folder, copy_function=os.link)
        damage(folder)
    shutil.copytree(plain, root / "agents/plain")
    shutil.copytree(old, root / "agents/old")
    process = multiprocessing.get_context("forkserver").Process(
        target=judge, args=(root / "agents", root / "verdicts.json")
    )
    process.start()
    process.join(300)  # one that waits for a pipe would wait for ever
    process.kill()
    return {name: (kind, text) for name, (kind, text) in read_json(root / "verdicts.json").items()}


@pytest.mark.parametrize("name", CASES)
def test_a_hostile_agent_is_refused_in_one_line(
    verdicts: dict[str, tuple[str, str]], name: str
) -> None:
    kind, text = verdicts.get(name, ("nothing", "the process hung or died"))
    assert kind == "ArtifactError", text
    assert f"agents/{name}" in text
    assert text.isprintable()
    assert len(text) < 700


def test_as_is_or_without_sha256_the_same_agent_opens(verdicts: dict[str, tuple[str, str]]) -> None:
    assert verdicts["plain"] == verdicts["old"] == ("opened", "")


def test_an_older_agent_has_the_same_fingerprint_and_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    whole = fingerprint_of_agent(SHIPPED)
    assert not caplog.messages
    shutil.copytree(SHIPPED, tmp_path / "old")
    older = read_json(tmp_path / "old/agent.json")
    del older["files"]
    write_json(tmp_path / "old/agent.json", older)
    for _ in range(2):
        assert fingerprint_of_agent(tmp_path / "old") == whole
    assert len(caplog.messages) == 1
    assert "agent.json: has no SHA-256" in caplog.messages[0]


def test_escapes_in_an_agents_words_reach_no_terminal(smoke: Path, tmp_path: Path) -> None:
    agent = tmp_path / "agent"
    shutil.copytree(smoke / "smoke/controller/agent", agent)
    record(env_id="\x1b[2J\x1b]0;x\x07\u202eCarRacing")(agent)
    done = run(tmp_path, "stage=evaluate", "preset=smoke", f"model={agent}", *BRIEFLY, ALONE)
    line = error_line(done)
    assert "trained for \\x1b[2J\\x1b]0;x\\x07\\u202eCarRacing, env is CarRacing-v3" in line
    assert "\x1b" not in line + done.stdout


def test_a_pipe_in_an_agent_ends_a_command_with_one_line(agent: Path, tmp_path: Path) -> None:
    (agent / "vae.safetensors").unlink()
    os.mkfifo(agent / "vae.safetensors")
    for words in (("stage=evaluate", f"model={agent}"), ("stage=controller", f"base={agent}")):
        line = error_line(run(tmp_path, *words, "preset=smoke", ALONE))
        assert "vae.safetensors: is not a regular file" in line
