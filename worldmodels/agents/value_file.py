"""The value functions of an agent's learned model, as a file: ``value.safetensors``."""

from __future__ import annotations

from pathlib import Path

from worldmodels.agents.model_files import finite, is_tensor
from worldmodels.config.keys import Limit
from worldmodels.config.limits import LIMITS
from worldmodels.errors import ArtifactError
from worldmodels.files import weights
from worldmodels.models.value import ValueEnsemble

VALUE = "value.safetensors"
_MEMBERS = Limit(1, 32)


def save_values(path: Path, values: ValueEnsemble) -> None:
    """Write value functions; raises `ArtifactError` where the disk is full or not writable."""
    sizes = {"members": values.members, "horizon": values.horizon, "penalty": values.penalty}
    weights.save(path, {"sizes": sizes, "tensors": dict(values.state_dict())})


def load_values(path: Path, features: int) -> ValueEnsemble:
    """Read value functions.

    Args:
        path: of the file.
        features: F, that they have to take.

    Raises:
        ArtifactError: the file is missing, damaged, or for other features.
    """
    outline = weights.outline(path)
    sizes, tensors = outline.get("sizes"), outline.get("tensors")
    wrong = ArtifactError(
        f"{path} does not hold value functions of {features} features: copy it again"
    )
    if not isinstance(sizes, dict) or sizes.keys() != {"members", "horizon", "penalty"}:
        raise wrong
    members, horizon, penalty = (sizes[key] for key in ("members", "horizon", "penalty"))
    if type(members) is not int or type(horizon) is not int or members not in _MEMBERS:
        raise wrong
    if horizon not in LIMITS["controller.value_horizon"]:
        raise wrong
    if type(penalty) is not float or penalty not in LIMITS["controller.termination_penalty"]:
        raise wrong
    values = ValueEnsemble(features, members, horizon, penalty)
    wanted = values.state_dict()
    if not isinstance(tensors, dict) or tensors.keys() != wanted.keys():
        raise wrong
    if not all(is_tensor(tensors[name], tuple(t.shape), t.dtype) for name, t in wanted.items()):
        raise wrong
    stored = weights.load(path)["tensors"]
    values.load_state_dict({name: finite(path, name, stored[name]) for name in wanted})
    return values.eval()
