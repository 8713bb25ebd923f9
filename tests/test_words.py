"""Words of the command line that do not compose: what is said of them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from command import CONF

from worldmodels import command_line
from worldmodels.config import renames

ENVS, PRESETS, WORKERS = (
    sorted(path.stem for path in (CONF / group).glob("*.yaml"))
    for group in ("env", "preset", "workers")
)


@pytest.fixture
def line_of(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., str]:
    """What a command that fails prints, from its words."""

    def line(*words: str) -> str:
        monkeypatch.setattr(sys, "argv", ["worldmodels", "stage=inspect", *words])
        assert command_line.command() == 1
        return capsys.readouterr().err

    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")  # both are changed by the command
    monkeypatch.setattr(sys, "path", [*sys.path])
    return line


# Help


@pytest.mark.parametrize(
    ("word", "group"),
    [
        *((f"{group}=[{option}]", group) for group, option in (("preset", "quick"), ("env", "x"))),
        *(("~preset", "preset"), ("~env", "env"), ("~preset=quick", "preset")),
        *(("preset={a:1}", "preset"), ("preset=null", "preset"), ("preset=5", "preset")),
        *(("preset=paper,quick", "preset"), ("workers=local,ray", "workers")),
        *(("+preset=smoke", "preset"), ("++env=carracing", "env")),
    ],
)
def test_a_wrong_form_of_a_group_is_answered_with_its_names(
    word: str, group: str, line_of: Callable[..., str]
) -> None:
    names = {"preset": PRESETS, "env": ENVS, "workers": WORKERS}[group]
    said = f"{word}: give {group}=<name>, and choose one of {', '.join(names)}; several with"
    assert line_of(word) == f"error: {said} --multirun\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["~logger", "vae.epoch=3"], "error: vae.epoch: no such key"),
        (["--multirun", "preset=quick,paper", "vae.epoch=3"], "error: vae.epoch: no such key"),
        (["preset=[quick"], "error: no viable alternative"),
    ],
)
def test_a_right_form_of_a_group_is_not_blamed(
    words: list[str], said: str, line_of: Callable[..., str]
) -> None:
    assert line_of(*words).startswith(said)


@pytest.mark.parametrize("value", ["[3]", "[[3]]", "3", "null"])
def test_a_schedule_that_is_no_list_of_mappings_is_answered_with_its_form(
    value: str, line_of: Callable[..., str]
) -> None:
    line = line_of(f"iterate.schedule={value}")
    assert line.startswith("error: iterate.schedule: give each entry the round that it begins")


# Old names


def test_an_old_group_of_a_user_is_answered_with_the_present_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line_of: Callable[..., str]
) -> None:
    (tmp_path / "memory").mkdir()
    monkeypatch.setitem(renames.RENAMED, "memory", "rnn")
    for words, said in (
        (["--config-dir", str(tmp_path)], f"{tmp_path}/memory: renamed; use {tmp_path}/rnn"),
        (["memory=paper"], "memory: renamed; use rnn"),
        (["memory.mixtures=3"], "memory.mixtures: renamed; use rnn.mixtures"),
        (["+memory={mixtures: 3}"], "memory: renamed; use rnn"),
    ):
        assert line_of(*words) == f"error: {said}\n"


@pytest.mark.parametrize(
    "words",
    [
        ["experiment=foo"],
        ["experiment=carracing/quick", "preset=quick", "--cfg", "job"],
        ["+experiment=carracing/quick"],
        ["~experiment"],
        ["recipe=quick"],
    ],
)
def test_an_experiment_is_chosen_by_environment_and_preset_alone(
    words: list[str], line_of: Callable[..., str]
) -> None:
    word = words[0].removeprefix("+")
    said = f"error: {word}: is chosen by env and preset; give those\n"
    assert line_of(*words) == said


def test_the_old_folder_of_experiments_is_answered_with_the_present_one(
    tmp_path: Path, line_of: Callable[..., str]
) -> None:
    (tmp_path / "recipe").mkdir()
    error = line_of("--config-dir", str(tmp_path))
    assert error == f"error: {tmp_path}/recipe: renamed; use {tmp_path}/experiment\n"


def test_a_wrong_key_of_the_bootstrap_run_is_named_with_a_similar_one(
    line_of: Callable[..., str],
) -> None:
    said = "controller.popluation: no such key, perhaps controller.population"
    error = line_of("bootstrap.controller.popluation=4")
    assert error.startswith(f"error: with the values of bootstrap.*: {said} ")


@pytest.mark.parametrize("wrong", ["env=[1]", "experiment=foo"])
def test_debug_shows_the_traceback_of_words_that_do_not_compose(
    wrong: str, line_of: Callable[..., str]
) -> None:
    *before, last = line_of(wrong, "debug=true").splitlines()
    assert before[0].startswith("Traceback")
    assert [last, ""] == line_of(wrong).split("\n")
    assert last.startswith(f"error: {wrong}: ")
