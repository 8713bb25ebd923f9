"""What a configuration may be, before any work begins."""

import types
import typing
from collections.abc import Iterator
from dataclasses import is_dataclass

import pytest
from command import CONF, composed
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from worldmodels import config as schema
from worldmodels import limits
from worldmodels.errors import ConfigError

PRESETS = [
    [f"env={env.stem}", f"preset={preset.stem}"]
    for env in sorted((CONF / "env").glob("*.yaml"))
    for preset in sorted((CONF / "preset").glob("*.yaml"))
]


def number_keys(kind: type, prefix: str = "") -> Iterator[str]:
    """The keys of a schema that take a number, perhaps or null, by their types."""
    for name, hint in typing.get_type_hints(kind).items():
        if is_dataclass(hint):
            assert isinstance(hint, type)
            yield from number_keys(hint, f"{prefix}{name}.")
        options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
        if {int, float} & set(options):
            yield f"{prefix}{name}"


@pytest.mark.parametrize("overrides", PRESETS)
def test_every_preset_of_every_environment_is_within_them(overrides: list[str]) -> None:
    limits.check(composed(*overrides))


def test_every_number_has_one() -> None:
    assert set(number_keys(schema.Config)) == limits.LIMITS.keys()


@pytest.mark.parametrize("key", limits.LIMITS)
def test_a_number_outside_is_refused_by_name(key: str) -> None:
    limit = limits.LIMITS[key]
    inside = max(limit.least, 1)
    assert inside in limit
    outside = limit.least if limit.above else limit.least - 1
    with pytest.raises(ConfigError, match=rf"{key}={outside}(\.0)?: choose {limit}"):
        limits.check(schema.changed(composed(), OmegaConf.from_dotlist([f"{key}={outside}"])))


@given(st.floats(), st.integers(-5, 5), st.integers(0, 5), st.booleans())
def test_an_interval_holds_finite_numbers_between_its_ends(
    number: float, least: int, width: int, above: bool
) -> None:
    limit = limits.Limit(least, least + width, above)
    enough = number > least if above else number >= least
    assert (number in limit) == (enough and number <= least + width)
    assert float("nan") not in limits.Limit(least)
    assert float("inf") not in limits.Limit(least)


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["controller.first_episodes=17"], "controller.first_episodes=17: choose 2 to"),
        (["controller.budget=null", "controller.final_sigma=0.01"], "needs controller.budget"),
        (["controller.final_sigma=0.2"], "controller.final_sigma=0.2: choose at most"),
        (["evaluate.first_seed=268435400"], "evaluate.first_seed=268435400"),
        (["controller.world=dream"], "controller.latent=mean: M will dream of rnn.latent=sampled"),
        (["scout.vae.epochs=-1"], r"scout\.\*: vae.epochs=-1: choose 0 or more"),
        (["+vae.latent=3"], "vae.latent: no such key, perhaps rnn.latent or controller.latent"),
    ],
)
def test_what_does_not_go_together_is_refused(overrides: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        limits.check(composed("preset=laptop", *overrides))


def test_a_dream_on_models_at_hand_is_left_to_the_search() -> None:
    limits.check(composed("stage=controller", "controller.world=dream"))
