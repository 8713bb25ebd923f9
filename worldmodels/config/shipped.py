"""What comes with the package beside its code: the configuration, and trained agents.

They are folders at the top level of the repository and, in an installed wheel, of the package.
"""

from __future__ import annotations

from pathlib import Path

from omegaconf import OmegaConf

from worldmodels import extensions
from worldmodels.config.sections import EnvConfig
from worldmodels.errors import ConfigError

PACKAGE = Path(__file__).resolve().parents[1]
INSTALLED = (PACKAGE / "conf").is_dir()
"""Whether this is an installed wheel, not a checkout."""

_HOME = PACKAGE if INSTALLED else PACKAGE.parent
CONF = _HOME / "conf"
PRETRAINED = _HOME / "pretrained"


def agents() -> list[str]:
    """The trained agents that are shipped, as ``model=`` and ``base=`` name them."""
    return sorted(f"pretrained/{record.parent.name}" for record in PRETRAINED.glob("*/agent.json"))


def group_files(group: str) -> list[Path]:
    """The files of a configuration group: those of ``conf/``, then those of other packages."""
    folders = [CONF, *extensions.config_folders()]
    return [path for folder in folders for path in sorted((folder / group).glob("*.yaml"))]


def environment_of(env_id: str) -> str:
    """The override that chooses an environment: its group where it has one."""
    group = group_of(env_id)
    return f"env.id={env_id}" if group is None else f"env={group}"


def group_of(env_id: str) -> str | None:
    """The first configuration group ``env=`` that configures an environment, if there is one."""
    return next(iter(groups_of(env_id)), None)


def groups_of(env_id: str) -> list[str]:
    """The configuration groups ``env=`` that configure an environment."""
    groups = {}
    for path in group_files("env"):
        group = OmegaConf.load(path)
        groups[path.stem] = OmegaConf.select(group, "env.id") or OmegaConf.select(group, "id")
    return [name for name, chosen in groups.items() if env_id == (chosen or EnvConfig().id)]


def find_agent(name: str) -> Path | None:
    """The folder of a trained agent: `name` itself or, for an agent that is shipped, where it is.

    A folder of the working directory comes before a shipped one of the same name. The folder of a
    controller stage stands for the agent in it.
    """
    folder = Path(name)
    if not folder.exists() and folder.as_posix() in agents():
        folder = PRETRAINED / folder.name
    for candidate in (folder, folder / "agent"):
        if (candidate / "agent.json").exists():
            return candidate
    return None


def require_agent(key: str, name: str) -> Path:
    """The folder of the trained agent that `key` names; raises `ConfigError` if there is none."""
    folder = find_agent(name)
    if folder is None:
        if find_agent(str(Path(name, "controller"))) is not None:
            raise ConfigError(f"{key}={name}: is a run, not an agent; give {name}/controller")
        raise ConfigError(
            f"{key}={name}: no trained agent is there (agent.json is missing); give the folder of"
            f" one, or one that is shipped: {', '.join(agents())}"
        )
    return folder
