"""The schema and ``conf/``: one source of each default, help for each key, answers to old names."""

import copy
import math
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from functools import cache, reduce
from itertools import product
from operator import getitem
from pathlib import Path
from typing import Any

import pytest
from command import CONF, composed, error_line, run
from omegaconf import OmegaConf

from worldmodels.config import limits, renames, schema
from worldmodels.config.choices import Stage
from worldmodels.config.keys import keys_of
from worldmodels.errors import ArtifactError, ConfigError
from worldmodels.runs.artifacts import Run

ENVS, PRESETS, LOGGERS, WORKERS = (
    sorted(path.stem for path in (CONF / group).glob("*.yaml"))
    for group in ("env", "preset", "logger", "workers")
)
KEYS = {key.name: key for key in keys_of(schema.Config)}

# Defaults and the values of conf/


@cache
def layer(path: Path) -> dict[str, Any]:
    """The values of a file of ``conf/``, from the top of the configuration."""
    values: Any = OmegaConf.to_container(OmegaConf.load(path)) or {}
    return values if "# @package _global_" in path.read_text() else {path.parent.name: values}


def merged(layers: list[dict[str, Any]]) -> dict[str, Any]:
    def merge(below: Any, above: Any) -> Any:
        if not (isinstance(below, dict) and isinstance(above, dict)):
            return above
        return below | {key: merge(below.get(key), value) for key, value in above.items()}

    result: dict[str, Any] = reduce(merge, [schema.plain(asdict(schema.Config())), *layers])
    return result


def leaves(values: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for key, value in values.items():
        if isinstance(value, dict) and (*path, key) != ("env", "kwargs"):
            yield from leaves(value, (*path, key))
        else:
            yield (*path, key)


def value_at(values: dict[str, Any], path: Iterable[str]) -> Any:
    """A value of `values`, None where there is none; an interpolation is followed."""
    found: Any = values
    for name in path:
        found = found.get(name)
    inner = re.compile(r"\$\{([^${}]+)\}")
    while isinstance(found, str) and inner.search(found):
        found = inner.sub(lambda match: str(_interpolated(values, match[1])), found)
    return found


def _interpolated(values: dict[str, Any], words: str) -> Any:
    name, colon, arguments = words.partition(":")
    if not colon:
        return value_at(values, name.split("."))
    assert name == "episode_steps"
    limit, skip = arguments.split(",")
    return math.ceil(int(limit) / (1 if skip == "None" else int(skip)))


def test_no_value_of_conf_is_what_it_would_be_without_its_line() -> None:
    needed: dict[Path, set[tuple[str, ...]]] = {}
    for env, preset, logger, workers in product(ENVS, PRESETS, LOGGERS, WORKERS):
        files = [CONF / f"env/{env}.yaml", CONF / f"logger/{logger}.yaml"]
        files.append(CONF / f"workers/{workers}.yaml")
        files += [CONF / f"preset/{preset}.yaml", CONF / f"experiment/{env}/{preset}.yaml"]
        layers = {path: layer(path) for path in files if path.exists()}
        whole = merged(list(layers.values()))
        if (preset, logger, workers) == (
            "laptop",
            "csv",
            "local",
        ):  # this emulation of Hydra is true to it
            config = schema.plain(asdict(composed(f"env={env}", f"preset={preset}")))
            assert OmegaConf.to_container(OmegaConf.create(whole), resolve=True) == config
        for path, values in layers.items():
            found = needed.setdefault(path, set())
            for leaf in set(leaves(values)) - found:
                less = copy.deepcopy(values)
                del reduce(getitem, leaf[:-1], less)[leaf[-1]]
                others = merged([less if p == path else v for p, v in layers.items()])
                if value_at(others, leaf) != value_at(whole, leaf):
                    found.add(leaf)
    assert needed.keys() == {*CONF.rglob("*.yaml")} - {CONF / "config.yaml"}
    for path, found in needed.items():
        repeated = {".".join(leaf) for leaf in set(leaves(layer(path))) - found}
        assert not repeated, f"{path.relative_to(CONF)}: remove {repeated}"


def test_a_users_files_of_a_section_compose_and_replace_a_presets_values(tmp_path: Path) -> None:
    keys = {"vae": "epochs", "rnn": "epochs", "controller": "episodes"}
    for section, key in (keys | {"trainer": "log_every", "workers": "processes"}).items():
        (tmp_path / section).mkdir()
        (tmp_path / section / "mine.yaml").write_text(f"{key}: 77\n")
    words = [f"{folder.name}=mine" for folder in tmp_path.iterdir()]
    done = run(tmp_path, "--config-dir", str(tmp_path), "--cfg", "job", *words)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(": 77\n") == len(words) == 5


def test_every_key_has_a_meaning() -> None:
    assert KEYS.keys() == set(schema.flat(**vars(schema.Config())))
    for key in KEYS.values():
        assert key.meaning.endswith("."), key.name
        assert key.meaning.isascii(), key.name  # for terminals of any encoding


def test_help_has_every_stage_group_and_key_with_the_values_of_its_command(tmp_path: Path) -> None:
    (tmp_path / "env").mkdir()
    (tmp_path / "env/mine.yaml").write_text("# My race. It is long.\nname: mine\n")
    words = ("--help", "--config-dir", str(tmp_path), "env=mine", "vae.latent_size=7")
    done = run(tmp_path, *words)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 100
    assert "  env=mine                 My race" in lines
    size = "  vae.latent_size=7                 Size of the latent z. [1 to 512; default 32]"
    assert size in lines
    shown = {line.split("=")[0].strip() for line in lines if line.startswith("  ")}
    assert shown >= KEYS.keys()
    choices = [f"stage={stage.name}" for stage in Stage]
    choices += [f"env={env}" for env in ENVS] + [f"preset={preset}" for preset in PRESETS]
    for choice in choices:
        assert any(line.startswith(f"  {choice} ") for line in lines), choice


def test_help_of_a_section_has_its_keys_alone(tmp_path: Path) -> None:
    done = run(tmp_path, "--help", "vae", "preset=smoke")
    assert done.returncode == 0, done.stderr
    shown = [line.split("=")[0].strip() for line in done.stdout.splitlines() if "=" in line[:36]]
    assert shown == [name for name in KEYS if name.startswith("vae.")]
    assert "  vae.batch_size=32 " in done.stdout


def test_a_command_without_words_prints_a_short_help(tmp_path: Path) -> None:
    line = [sys.executable, "-m", "worldmodels"]
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "stage=all preset=quick" in done.stdout
    assert not list(tmp_path.iterdir())


# Groups


def test_a_present_name_exists_and_is_in_the_changelog() -> None:
    sections = {name.partition(".")[0] for name in KEYS}
    changelog = (CONF.parent / "CHANGELOG.md").read_text()
    for old, present in renames.RENAMED.items():
        assert present in KEYS or present in sections
        assert old not in KEYS
        assert f"`{old}`" in changelog
    for old, present in renames.RENAMED_GROUPS.items():
        assert (CONF / present).is_dir()
        assert not (CONF / old).exists()
        assert f"`{old}`" in changelog
    for key, values in renames.RENAMED_VALUES.items():
        choices = KEYS[key].accepts.split(", ")
        for old, present in values.items():
            assert present in choices
            assert old not in choices


def test_an_old_section_stands_for_all_its_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(renames.RENAMED, "memory", "rnn")
    assert renames.renamed("memory") == "rnn"
    assert renames.renamed("memory.mixtures") == "rnn.mixtures"
    assert renames.renamed("memory2.mixtures") is None


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["rnn.restart=true"], "rnn.restart: renamed; use rnn.is_first"),
        (["~rnn.restart"], "rnn.restart: renamed; use rnn.is_first"),
        (["controller.hidden=after"], "controller.hidden=after: renamed; use controller.hidden=up"),
        (
            ["+bootstrap={rnn:{death_weight:2}}"],
            "with the values of bootstrap.*: rnn.death_weight: renamed; use rnn.termination_pos_w",
        ),
        (
            ["bootstrap.controller.hidden=before"],
            "bootstrap.*: controller.hidden=before: renamed; use controller.hidden=previous",
        ),
        (["env=key"], "env/key.yaml: rnn.restart: renamed; use rnn.is_first"),
        (["env=value"], "env/value.yaml: controller.hidden=before: renamed; use controller.hidden"),
    ],
)
def test_an_old_name_is_answered_with_the_present_one(
    tmp_path: Path, words: list[str], said: str
) -> None:
    if words[0].startswith("env="):
        (tmp_path / "env").mkdir()
        head = "# @package _global_\n"
        (tmp_path / "env/key.yaml").write_text(f"{head}rnn: {{restart: true}}\n")
        (tmp_path / "env/value.yaml").write_text(f"{head}controller: {{hidden: before}}\n")
        words = ["--config-dir", str(tmp_path), *words]
    assert said in error_line(run(tmp_path, "stage=inspect", *words))


def test_an_old_key_that_is_added_is_answered_with_the_present_one() -> None:
    with pytest.raises(ConfigError, match=r"rnn\.restart: renamed; use rnn\.is_first"):
        limits.check(composed("+rnn.restart=true"))


@pytest.mark.parametrize(
    ("old", "now", "said"),
    [
        (
            {"rnn.restart": True},
            {"rnn.is_first": True},
            "an older version, whose rnn.restart is now rnn.is_first: ",
        ),
        (
            {"controller.hidden": "after"},
            {"controller.hidden": "updated"},
            "an older version, whose controller.hidden=after is now controller.hidden=updated: ",
        ),
    ],
)
def test_an_old_runs_manifest_is_answered_with_the_present_name(
    tmp_path: Path, old: dict[str, Any], now: dict[str, Any], said: str
) -> None:
    stage = Run(tmp_path / "run")
    with stage.begin("rnn", {"rnn.epochs": 1, **old}, {}) as folder:
        folder.finish("0" * 16)
    with pytest.raises(ArtifactError, match=said):
        stage.begin("rnn", {"rnn.epochs": 1, **now}, {})


@pytest.mark.parametrize(
    "word", ["env.kwargs={lap_complete_percent: 0.9}", "+env.kwargs.lap_complete_percent=0.9"]
)
def test_a_mapping_takes_new_keys(word: str) -> None:
    assert composed(word).env.kwargs == {"lap_complete_percent": 0.9}


@pytest.mark.parametrize(
    ("words", "episodes"),
    [
        (("preset=quick", "bootstrap={rollouts: {episodes: 64}}"), (64, None)),
        (("preset=quick", "bootstrap.rollouts.episodes=64"), (64, None)),
        (("preset=quick", "+bootstrap.rollouts.episodes=64"), (64, None)),
        (("preset=laptop", "bootstrap.controller.episodes=4"), (None, 4)),
    ],
)
def test_the_bootstrap_run_takes_keys_of_its_own(
    words: tuple[str, ...], episodes: tuple[int | None, int | None]
) -> None:
    config, preset = composed(*words), composed(words[0])
    limits.check(config)
    own, before = schema.bootstrap_config(config), schema.bootstrap_config(preset)
    assert own.rollouts.episodes == (episodes[0] or before.rollouts.episodes)
    assert own.controller.episodes == (episodes[1] or before.controller.episodes)
    assert (own.vae, own.bootstrap) == (before.vae, {})  # what the preset gives it is kept
    config.bootstrap = preset.bootstrap
    assert config == preset


def test_a_schedule_changes_keys_from_a_round_on() -> None:
    entries = (
        "{round: 2, rnn: {epochs: 6, members: 2}, controller: {sigma: 0.05}}",
        "{round: 4, rnn: {epochs: 3}, rollouts: {noise: 0.4}}",
    )
    words = (f"iterate.schedule=[{', '.join(entries)}]", "iterate.noise=0.2", "rnn.epochs=9")
    config = composed("preset=smoke", *words)
    rounds = [schema.round_config(config, number) for number in range(1, 6)]
    assert [own.rnn.epochs for own in rounds] == [9, 6, 6, 3, 3]
    assert [own.rnn.members for own in rounds] == [1, 2, 2, 2, 2]
    assert [own.controller.sigma for own in rounds] == [config.controller.sigma] + [0.05] * 4
    assert [own.rollouts.noise for own in rounds] == [config.rollouts.noise, 0.2, 0.2, 0.4, 0.4]
    policies = {own.rollouts.policy.name for own in rounds[1:]}
    assert (rounds[0].rollouts.policy, policies) == (config.rollouts.policy, {"controller"})
    assert config.rnn.epochs == 9
    assert not any(own.iterate.schedule for own in rounds)
