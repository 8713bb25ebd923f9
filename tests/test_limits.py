"""What a configuration may be, before any work begins."""

import copy
import functools
import math
import re
import sys
import types
import typing
from collections.abc import Iterator
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

import pytest
from command import CONF, composed, error_line, run
from hypothesis import given
from hypothesis import strategies as st

from worldmodels import extras
from worldmodels.config import limits, schema
from worldmodels.config.keys import Limit
from worldmodels.errors import ConfigError
from worldmodels.runs.artifacts import Run
from worldmodels.stages.context import Context

PRESETS = [
    [f"env={env.stem}", f"preset={preset.stem}"]
    for env in sorted((CONF / "env").glob("*.yaml"))
    for preset in sorted((CONF / "preset").glob("*.yaml"))
]


def number_keys(kind: type, prefix: str = "") -> Iterator[str]:
    """The keys of a schema that take a number, numbers, or perhaps null, by their types."""
    for name, hint in typing.get_type_hints(kind).items():
        if is_dataclass(hint):
            assert isinstance(hint, type)
            yield from number_keys(hint, f"{prefix}{name}.")
        options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
        if {int, float, list[int], list[float]} & set(options):
            yield f"{prefix}{name}"


@functools.cache
def _default() -> schema.Config:
    return composed()


def with_value(key: str, value: Any) -> schema.Config:
    """The default configuration with another value, as a list where the key takes one."""
    config = copy.deepcopy(_default())
    *groups, name = key.split(".")
    group = functools.reduce(getattr, groups, config)
    setattr(group, name, [value] * 3 if key == "env.action_bins" else value)
    return config


@pytest.mark.parametrize("overrides", PRESETS)
def test_every_preset_of_every_environment_is_within_them(overrides: list[str]) -> None:
    limits.check(composed(*overrides))


def test_every_number_has_one_with_finite_ends() -> None:
    assert set(number_keys(schema.Config)) == limits.LIMITS.keys()
    for limit in limits.LIMITS.values():
        assert math.isfinite(limit.least)
        assert math.isfinite(limit.most)
        assert limit.least <= limit.most


@pytest.mark.parametrize("key", limits.LIMITS)
def test_a_number_outside_is_refused_by_name(key: str) -> None:
    limit = limits.LIMITS[key]
    outside = [limit.least if limit.above else limit.least - 1, limit.most + 1, 10**400]
    outside += [1e308, math.nan, math.inf, -math.inf]
    outside += [number for number in (0, -1) if number not in limit]
    for number in outside:
        with pytest.raises(ConfigError) as raised:
            limits.check(with_value(key, number))
        line = str(raised.value)
        assert re.match(rf"{re.escape(key)}=\S+: choose {re.escape(str(limit))}$", line), line
        assert len(line) < 200


def test_a_text_with_control_characters_is_refused() -> None:
    for key in ("env.id", "env.name", "vae.encoder", "logger.project", "run"):
        with pytest.raises(ConfigError, match=rf"{key}=.*: has control characters"):
            limits.check(composed(f"{key}='a\x1b[2Jb'"))


@pytest.mark.parametrize(
    "word",
    [
        "rollouts.episodes=300000000",
        "seed=1" + 400 * "0",
        "vae.learning_rate=1" + 400 * "0",
        "env.action_bins=[0,1,1e999]",
    ],
)
def test_a_number_without_bound_ends_the_command_with_one_line(tmp_path: Path, word: str) -> None:
    line = error_line(run(tmp_path, "stage=all", word))
    assert word.partition("=")[0] in line
    assert len(line) < 300


@given(st.floats(), st.integers(-5, 5), st.integers(0, 5), st.booleans())
def test_an_interval_holds_finite_numbers_between_its_ends(
    number: float, least: int, width: int, above: bool
) -> None:
    limit = Limit(least, least + width, above)
    enough = number > least if above else number >= least
    assert (number in limit) == (enough and number <= least + width)
    for never in (math.nan, math.inf, -math.inf):
        assert never not in limit


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["controller.first_episodes=17"], "controller.first_episodes=17: choose 2 to"),
        (
            ["controller.total_steps=null", "controller.final_sigma=0.01"],
            "needs controller.total_steps",
        ),
        (["controller.final_sigma=0.2"], "controller.final_sigma=0.2: choose at most"),
        (
            ["controller.pessimism=0.5"],
            "controller.pessimism=0.5: needs controller.world=dream; give that, or 0",
        ),
        (
            ["controller.pessimism=0.5", "controller.world=dream", "controller.latent=sampled"],
            "controller.pessimism=0.5: needs rewards of several members; give rnn.members=2",
        ),
        (
            [
                *("controller.pessimism=0.5", "controller.world=dream", "rnn.members=2"),
                *("controller.latent=sampled", "rnn.reward_weight=0"),
            ],
            "controller.pessimism=0.5: needs rewards of several members",
        ),
        (
            ["controller.starts=recorded"],
            "controller.starts=recorded: needs .*; give that, or first",
        ),
        (
            ["controller.failure_starts=0.5"],
            "failure_starts=0.5: needs controller.starts=recorded; give that, or 0",
        ),
        (
            ["controller.sampled_termination=true"],
            "sampled_termination=True: needs .*; give that, or false",
        ),
        (["rnn.failure_termination=9"], "failure_termination=9: needs rollouts.stall_steps"),
        (
            ["iterate.schedule=[{round:2,rnn:{epochs:-1}}]"],
            "with the values of iterate.schedule from round 2 on: rnn.epochs=-1: choose 0 to",
        ),
        (["iterate.schedule=[{rnn:{epochs:1}}]"], "^iterate.schedule: round=None: give each entry"),
        (["iterate.schedule=[{round:true}]"], "^iterate.schedule: round=True: give each entry"),
        (
            ["iterate.schedule=[{round:2,run:x}]"],
            "^iterate.schedule: run=x from round 2 on: all rounds share this key; leave it out",
        ),
        (
            ["iterate.schedule=[{round:2,vae:3}]"],
            "^with the values of iterate.schedule from round 2 on: vae=3: takes no value of its",
        ),
        (
            ["iterate.schedule=[{round:1},{round:3,vea:{epochs:1}}]"],
            "^with the values of iterate.schedule from round 3 on: vea: no such key",
        ),
        (
            ["iterate.schedule=[{round:2,vae:{epochs:x}}]"],
            "^with the values of iterate.schedule from round 2 on: vae.epochs: Value 'x' of type",
        ),
        (
            ["iterate.schedule=[{round:2,rnn:{epochs:1}},{round:3,rnn:{hidden_size:8}}]"],
            "iterate.schedule: rnn.hidden_size changes in round 3, whose training starts from",
        ),
        (
            ["iterate.schedule=[{round:2,controller:{features:z}}]"],
            "iterate.schedule: controller.features changes in round 2, whose training starts",
        ),
        (["iterate.schedule=[{round:0}]"], "iterate.schedule: round=0: give each entry the round"),
        (
            ["iterate.schedule=[{round:3},{round:2}]"],
            r"iterate.schedule: its rounds are \[3, 2\]: give them in rising order",
        ),
        (["rnn.members=0"], "rnn.members=0: choose 1 to 32"),
        (["controller.population=2"], "controller.population=2: choose 3 to 10000"),
        (["rnn.members=33"], "rnn.members=33: choose 1 to 32"),
        (["controller.pessimism=-1"], "controller.pessimism=-1.0: choose 0 to 1000"),
        (["evaluate.first_seed=268435400"], "evaluate.first_seed=268435400"),
        (["controller.world=dream"], "controller.latent=mean: must equal rnn.latent=sampled"),
        (["bootstrap.vae.epochs=-1"], r"bootstrap\.\*: vae.epochs=-1: choose 0 to 100000"),
        (["bootstrap.vae.epochs=x"], r"^with the values of bootstrap\.\*: vae.epochs: Value 'x'"),
        (["bootstrap.vae=3"], r"^with the values of bootstrap\.\*: vae=3: takes no value"),
        (
            ["controller.population=5000", "controller.episodes=5000"],
            "controller.population=5000: .*25,000,000 episodes; choose at most 1,000,000",
        ),
        (
            ["env.num_envs=4096", "rollouts.episodes=4096", "rollouts.max_steps=100000"],
            "env.num_envs=4096: .* choose at most",
        ),
        (
            ["env.size=512", "env.num_envs=256", "rollouts.episodes=256"],
            "env.num_envs=256: .* 65,536$",
        ),
        (
            [
                *("controller.diagonal=false", "controller.pca_components=null"),
                *("rnn.hidden_size=4096", "controller.hidden_units=64"),
            ],
            "controller.diagonal=false: .* fewer controller.pca_components",
        ),
        (["env.squash=[" + ",".join(["tanh"] * 1025) + "]"], "env.squash has 1025 entries"),
        (["+vae.latent=3"], "vae.latent: no such key, perhaps rnn.latent or controller.latent"),
    ],
)
def test_what_does_not_go_together_is_refused(overrides: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        limits.check(composed("preset=laptop", *overrides))


def test_a_dream_on_models_at_hand_is_left_to_the_search() -> None:
    limits.check(composed("stage=controller", "controller.world=dream"))


# --- what is checked before the first stage


@pytest.mark.parametrize("word", ["trainer.devices=2", "trainer.nodes=2", "trainer.strategy=ddp"])
def test_a_plan_of_training_in_several_processes_is_refused(word: str, tmp_path: Path) -> None:
    config = composed("preset=smoke", "stage=plan", word)
    with pytest.raises(ConfigError, match=r"stage=plan: measures training in one process; give"):
        Context(config, Run(tmp_path / "run")).check()


def test_a_chain_with_the_settings_of_later_rounds_is_refused(tmp_path: Path) -> None:
    config = composed("preset=dream-rounds", "stage=all")
    with pytest.raises(ConfigError, match=r"use stage=iterate, or iterate\.schedule="):
        Context(config, Run(tmp_path / "run")).check()


@pytest.mark.parametrize("stage", ["stage=all", "stage=iterate", "stage=evaluate"])
@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["env.squash=[warp,tanh,tanh]"], "env.squash: unknown squashing 'warp'"),
        (["env.id=CarRacing-v99"], "env.id=CarRacing-v99: is not registered"),
        (["env.id=NoSuchGame-v0"], "env.id=NoSuchGame-v0: is not registered"),
        (["env.id=json:NoSuchGame-v0"], "env.id=json:NoSuchGame-v0: is not registered"),
        (["evaluate.engine=native", "env.id=Acrobot-v1"], "engine=native simulates CarRacing-v3"),
        (["device=mps"], "device=mps"),
    ],
)
def test_what_a_later_stage_could_not_use_ends_a_chain_before_its_first(
    tmp_path: Path, stage: str, overrides: list[str], said: str
) -> None:
    config = composed("preset=smoke", stage, *overrides)
    limits.check(config)
    with pytest.raises(ConfigError) as raised:
        Context(config, Run(tmp_path / "run")).check()
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("bootstrap", "said"),
    [
        ("{env:{squash:[warp,tanh,tanh]}}", "env.squash: unknown squashing 'warp'"),
        ("{env:{id:NoSuchGame-v0}}", "env.id=NoSuchGame-v0"),
    ],
)
def test_a_bootstrap_configuration_is_checked_before_it(
    tmp_path: Path, bootstrap: str, said: str
) -> None:
    for stage in ("bootstrap", "all", "iterate"):
        config = composed("preset=smoke", f"stage={stage}", f"+bootstrap={bootstrap}")
        with pytest.raises(ConfigError, match=said):
            Context(config, Run(tmp_path / "run")).check()
    Context(
        composed("preset=smoke", "stage=vae", f"+bootstrap={bootstrap}"), Run(tmp_path / "run")
    ).check()


@pytest.mark.parametrize(
    ("overrides", "module", "said"),
    [
        (["logger=wandb"], "wandb", "logger=wandb: .* pip install wandb"),
        (["logger=tensorboard"], "tensorboard", "logger=tensorboard: "),
        (["env=breakout"], "ale_py", "env=breakout "),
        ([], "imageio_ffmpeg", "evaluate.video=true: .* pip install imageio-ffmpeg"),
        (["+bootstrap={logger:{name:wandb}}"], "wandb", "logger=wandb: "),
        (["+bootstrap={env:{engine:envpool}}"], "envpool", "env.engine=envpool: "),
    ],
)
def test_a_package_that_a_chain_will_need_is_missing_at_once(
    monkeypatch: pytest.MonkeyPatch, overrides: list[str], module: str, said: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)  # as if it were not installed
    for stage in ("all", "iterate"):
        with pytest.raises(ConfigError, match=said):
            extras.check(composed("preset=smoke", f"stage={stage}", *overrides))


def test_a_video_without_ffmpeg_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IMAGEIO_FFMPEG_EXE", "/nowhere/ffmpeg")
    with pytest.raises(ConfigError, match=r"evaluate.video=true: .*/nowhere/ffmpeg"):
        extras.check(composed("preset=smoke", "stage=all"))
    extras.check(composed("preset=smoke", "stage=all", "evaluate.video=false"))
    extras.check(composed("preset=smoke", "stage=vae"))


def test_a_place_that_cannot_be_written_is_named_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    config = composed("preset=smoke", f"data={tmp_path / 'file'}")
    with pytest.raises(ConfigError, match=r"data=.*file: .* cannot be written .Not a directory"):
        Context(config, Run(tmp_path / "file/run")).check()


def test_episodes_that_cannot_be_split_are_refused_before_they_are_collected() -> None:
    with pytest.raises(ConfigError, match=r"rollouts.episodes=1: one episode cannot be split"):
        limits.check(composed("preset=smoke", "stage=all", "rollouts.episodes=1"))
    limits.check(composed("preset=smoke", "stage=rollouts", "rollouts.episodes=1"))
