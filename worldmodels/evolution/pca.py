"""The subspace that is searched: principal components of the controller's features.

A controller has as many parameters as weights, 867 in the paper. But the features are correlated:
in recorded episodes of CarRacing 8 of 288 principal components hold nine tenths of the variance. So
CMA-ES searches the weights of the leading components, each scaled by the square root of its
standard deviation: a compromise between unscaled features, where the largest few dominate, and
whitened ones, where components that hardly vary count as much as those of the road.

The result is an ordinary controller: the components are multiplied into its weights. Shapes are in
the letters of docs/shapes.md: P candidates, F features.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from worldmodels.config.limits import LIMITS
from worldmodels.errors import ArtifactError
from worldmodels.files import weights
from worldmodels.models.controller import ControllerSpec

MOST_FEATURES = LIMITS["vae.latent_size"].most + 2 * LIMITS["rnn.hidden_size"].most
"""The largest number of features of a controller."""


class PCASubspace:
    """The linear map between coordinates in the subspace and parameters of controllers.

    Args:
        centre: mean of the features, (F,) float64; zero for controllers without biases.
        axes: scaled principal components, (F, components) float64.
        spec: layers of the controllers; coordinates are the parameters of a controller whose first
            layer has the components as its input.
    """

    def __init__(self, centre: np.ndarray, axes: np.ndarray, spec: ControllerSpec) -> None:
        self.centre, self.axes, self.spec = centre, axes, spec

    @classmethod
    def of(
        cls, mean: np.ndarray, moments: np.ndarray, components: int, spec: ControllerSpec
    ) -> PCASubspace:
        """The leading principal components of features.

        Args:
            mean: of the features, (F,) float64.
            moments: second moments about zero, (F, F) float64.
            components: how many, at most F.
            spec: layers of the controllers. With biases the components are those of the covariance
                matrix; without, of the second moments about zero.
        """
        centre = mean if spec.bias else np.zeros_like(mean)
        variances, vectors = np.linalg.eigh(moments - np.outer(centre, centre))
        leading = slice(None, -components - 1, -1)
        deviations = np.sqrt(variances[leading].clip(min=1e-12))
        return cls(centre, vectors[:, leading] / np.sqrt(deviations), spec)

    def leading(self, components: int) -> PCASubspace:
        """The same subspace with its first `components` only."""
        return PCASubspace(self.centre, self.axes[:, :components], self.spec)

    @property
    def size(self) -> int:
        """The number of coordinates of a controller."""
        return self.spec.size(self.axes.shape[1])

    def controllers(self, coordinates: np.ndarray) -> np.ndarray:
        """Parameters (P, spec.size(F)) float32 of controllers with coordinates (P, size)."""
        weight, bias, rest = self._first_layer(coordinates, self.axes.shape[1])
        weight = self.axes @ weight  # (P, F, outputs)
        if self.spec.bias:
            bias = bias - self.centre @ weight
        parts = (weight.reshape(len(weight), -1), bias, rest)
        return np.concatenate(parts, axis=1).astype(np.float32)

    def coordinates(self, parameters: np.ndarray) -> np.ndarray:
        """Coordinates (P, size) float64 of controllers with parameters (P, spec.size(F)).

        Weights outside the subspace are projected to it (least squares).
        """
        weight, bias, rest = self._first_layer(parameters, len(self.axes))
        if self.spec.bias:
            bias = bias + self.centre @ weight
        weight = np.linalg.pinv(self.axes) @ weight  # (P, components, outputs)
        return np.concatenate([weight.reshape(len(weight), -1), bias, rest], axis=1)

    def save(self, path: Path) -> None:
        """Write centre and axes as safetensors, atomically.

        Raises:
            ArtifactError: the disk is full or not writable.
        """
        arrays = {"centre": self.centre, "axes": np.ascontiguousarray(self.axes)}
        weights.save(path, {name: torch.from_numpy(array) for name, array in arrays.items()})

    @classmethod
    def load(cls, path: Path, spec: ControllerSpec) -> PCASubspace:
        """Read what `save` wrote.

        Args:
            path: of the file.
            spec: layers of the controllers, which the file does not hold.

        Raises:
            ArtifactError: the file is missing, damaged, or holds something else.
        """
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
        """Weights (P, inputs, outputs) of the first layer, its biases (P, outputs) or none (P, 0),
        and the remaining parameters."""
        rows = np.asarray(rows, np.float64)
        outputs = self.spec.layers(inputs)[0][1]
        count = inputs * outputs
        end = count + outputs * self.spec.bias
        return rows[:, :count].reshape(-1, inputs, outputs), rows[:, count:end], rows[:, end:]


def _fit_together(axes: tuple[int, ...] = (), centre: tuple[int, ...] = ()) -> bool:
    """Whether these are shapes (F, components) and (F,), with F at most `MOST_FEATURES`."""
    return len(axes) == 2 and centre == axes[:1] and 0 < axes[1] <= axes[0] <= MOST_FEATURES
