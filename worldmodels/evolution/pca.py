"""The subspace that a search explores: the principal components of the controller's inputs.

An evolution strategy feels its way through as many dimensions as a controller has weights, 867 in
the paper. But the features move together: in recorded episodes of CarRacing 8 of 288 principal
components hold nine tenths of the variance. So the search goes along the leading components, each
scaled by the root of its deviation: between the features as they are, where the largest few drown
the rest, and whitened ones, where what hardly varies counts as much as the road.

What is found is an ordinary controller: the components are multiplied into its weights.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from worldmodels import weights
from worldmodels.errors import ArtifactError
from worldmodels.limits import LIMITS
from worldmodels.models.controller import ControllerSpec

MOST_FEATURES = LIMITS["vae.latent_size"].most + 2 * LIMITS["rnn.hidden_size"].most
"""That a controller may have."""


class PCASubspace:
    """Coordinates of controllers, and the controllers they stand for.

    Args:
        centre: mean of the features, (features,); zero for controllers without biases.
        axes: scaled principal components, (features, components).
        spec: of the controllers; the components stand in for the features of its first layer.
    """

    def __init__(self, centre: np.ndarray, axes: np.ndarray, spec: ControllerSpec) -> None:
        self.centre, self.axes, self.spec = centre, axes, spec

    @classmethod
    def of(
        cls, mean: np.ndarray, moments: np.ndarray, components: int, spec: ControllerSpec
    ) -> PCASubspace:
        """The leading components of features with this mean (features,) and these second moments
        (features, features), about the mean where controllers have biases to make up for it."""
        centre = mean if spec.bias else np.zeros_like(mean)
        variances, vectors = np.linalg.eigh(moments - np.outer(centre, centre))
        leading = slice(None, -components - 1, -1)
        deviations = np.sqrt(variances[leading].clip(min=1e-12))
        return cls(centre, vectors[:, leading] / np.sqrt(deviations), spec)

    def leading(self, components: int) -> PCASubspace:
        """The first of them alone."""
        return PCASubspace(self.centre, self.axes[:, :components], self.spec)

    @property
    def size(self) -> int:
        """Coordinates of a controller."""
        return self.spec.size(self.axes.shape[1])

    def controllers(self, coordinates: np.ndarray) -> np.ndarray:
        """Parameters (n, spec.size(features)) float32 of controllers at (n, size)."""
        weight, bias, rest = self._first_layer(coordinates, self.axes.shape[1])
        weight = self.axes @ weight  # (n, features, outputs)
        if self.spec.bias:
            bias = bias - self.centre @ weight
        parts = (weight.reshape(len(weight), -1), bias, rest)
        return np.concatenate(parts, axis=1).astype(np.float32)

    def coordinates(self, parameters: np.ndarray) -> np.ndarray:
        """Where controllers with parameters (n, spec.size(features)) are, or the nearest ones."""
        weight, bias, rest = self._first_layer(parameters, len(self.axes))
        if self.spec.bias:
            bias = bias + self.centre @ weight
        weight = np.linalg.pinv(self.axes) @ weight  # (n, components, outputs)
        return np.concatenate([weight.reshape(len(weight), -1), bias, rest], axis=1)

    def save(self, path: Path) -> None:
        """Write them down."""
        arrays = {"centre": self.centre, "axes": np.ascontiguousarray(self.axes)}
        weights.save(path, {name: torch.from_numpy(array) for name, array in arrays.items()})

    @classmethod
    def load(cls, path: Path, spec: ControllerSpec) -> PCASubspace:
        """Read what `save` wrote; raises `ArtifactError` naming a file that cannot be read."""
        outline = weights.outline(path)
        shapes = {
            name: tuple(part.shape)
            for name, part in outline.items()
            if isinstance(part, torch.Tensor) and part.dtype is torch.float64
        }
        if outline.keys() != {"centre", "axes"} or not _fit_together(**shapes):
            raise ArtifactError(f"{path} does not hold a PCA subspace; copy it again")
        tree = weights.load(path)
        if not all(torch.isfinite(tensor).all() for tensor in tree.values()):
            raise ArtifactError(f"{path} has numbers that are not finite: copy it again")
        return cls(tree["centre"].numpy(), tree["axes"].numpy(), spec)

    def _first_layer(
        self, rows: np.ndarray, inputs: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Weights (n, inputs, outputs) of the first layer, its biases (n, outputs) or none (n, 0),
        and the rest."""
        rows = np.asarray(rows, np.float64)
        outputs = self.spec.layers(inputs)[0][1]
        count = inputs * outputs
        end = count + outputs * self.spec.bias
        return rows[:, :count].reshape(-1, inputs, outputs), rows[:, count:end], rows[:, end:]


def _fit_together(axes: tuple[int, ...] = (), centre: tuple[int, ...] = ()) -> bool:
    """Whether these are shapes (features, components) and (features,), for features that may be."""
    return len(axes) == 2 and centre == axes[:1] and 0 < axes[1] <= axes[0] <= MOST_FEATURES
