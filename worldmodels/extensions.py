"""What other packages add through Python entry points.

An entry point is found by its name in the metadata of installed packages. Only the one that a
configuration chooses is imported; folders of configuration groups are added without an import::

    [project.entry-points."worldmodels.trackers"]  # or worldmodels.encoders, worldmodels.dynamics
    jsonl = "my_package.tracker:JSONLines"

    [project.entry-points."worldmodels.conf"]
    my_package = "my_package.conf"
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import fields, is_dataclass
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.plugins import Plugins
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from worldmodels.errors import ConfigError

CONF_GROUP = "worldmodels.conf"


def find(group: str, what: str, name: str, known: Iterable[str]) -> Any:
    """The object that an entry point of another package names.

    Args:
        group: of entry points.
        what: the objects of that group are called, in error messages.
        name: of the entry point.
        known: names that need no entry point, for the list of choices.

    Raises:
        ConfigError: there is no such entry point, or it cannot be imported.
    """
    added = {entry.name: entry for entry in entry_points(group=group)}
    if name not in added:
        choices = ", ".join(dict.fromkeys([*known, *added]))
        raise ConfigError(f"unknown {what} {name!r}; choose one of {choices}")
    try:
        return added[name].load()
    except Exception as error:  # whatever the module of another package raises
        raise ConfigError(
            f"{what} {name}: {added[name].value} cannot be imported ({reason(error)}); reinstall"
            " the package that adds it"
        ) from error


def check_name(group: str, what: str, name: str, included: Container[str]) -> None:
    """Raise `ConfigError` for a name that several objects have: which one is meant is not said.

    Args:
        group: of entry points.
        what: the objects of that group are called, in error messages.
        name: that a configuration or a file chooses.
        included: names of the objects of this package.
    """
    packages = sorted(_package(entry) for entry in entry_points(group=group, name=name))
    if name in included and packages:
        raise ConfigError(
            f"{what} {name} is built in, and the package {packages[0]} adds another; rename its"
            " entry point, or uninstall it"
        )
    if len(packages) > 1:
        raise ConfigError(
            f"{what} {name}: the packages {' and '.join(packages)} each add one; rename an entry"
            " point, or uninstall one of them"
        )


def options(kind: Any, keys: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a class that a configuration chooses.

    Args:
        kind: the class; the fields of its dataclass `Options` have defaults and types.
        keys: of the configuration group; those with the name of an option set it, unless null.
        own: ``options`` of the group, for what it has no key for; they come before `keys`.

    Raises:
        ConfigError: the class has no such option, or it is of another type.
    """
    declared = getattr(kind, "Options", None)
    if not is_dataclass(declared):
        raise ConfigError(f"options: {kind!r} has no dataclass Options; correct its package")
    names = {field.name for field in fields(declared)}
    given = {name: value for name, value in keys.items() if value is not None}
    chosen = {name: value for name, value in given.items() if name in names} | dict(own)
    try:
        merged = OmegaConf.merge(OmegaConf.structured(declared), chosen)
    except OmegaConfBaseException as error:
        key = error.full_key or error.key
        if key not in names:
            known = ", ".join(sorted(names)) or "none"
            raise ConfigError(
                f"options.{key}: no such option; {kind.__name__} has {known}"
            ) from error
        raise ConfigError(f"options.{key}: {str(error).splitlines()[0]}") from error
    found = OmegaConf.to_container(merged)
    assert isinstance(found, dict)
    return {str(name): value for name, value in found.items()}


def reason(error: Exception) -> str:
    """An exception of other code, on one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())


def config_folders() -> list[Path]:
    """The folders of configuration groups that other packages add, none of which is imported.

    Raises:
        ConfigError: a package names a folder that it does not have.
    """
    return [_folder(entry) for entry in entry_points(group=CONF_GROUP)]


def _folder(entry: EntryPoint) -> Path:
    package, *rest = entry.value.split(".")
    spec = find_spec(package)  # of a name without a dot: nothing is imported
    places = [] if spec is None else spec.submodule_search_locations or []
    for place in places:
        folder = Path(place, *rest)
        if folder.is_dir():
            return folder
    raise ConfigError(
        f"{CONF_GROUP}: the package {_package(entry)} names {entry.value}, and there is no such"
        " folder; reinstall it, or uninstall it"
    )


def _package(entry: EntryPoint) -> str:
    """The name of the distribution that has an entry point."""
    return entry.dist.name if entry.dist is not None else entry.value.partition(".")[0]


class _ConfigFolders(SearchPathPlugin):
    """Adds these folders to Hydra's search path, after ``conf/``."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        for folder in config_folders():
            search_path.append(CONF_GROUP, f"file://{folder}")


def register() -> None:
    """Make the configuration groups of other packages known to Hydra."""
    Plugins.instance().register(_ConfigFolders)
