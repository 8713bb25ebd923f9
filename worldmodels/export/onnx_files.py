"""Graphs as ONNX files, compared with PyTorch by ONNX Runtime."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import onnxruntime
import torch

from worldmodels.errors import ArtifactError, WorldModelsError
from worldmodels.export.graphs import Graph
from worldmodels.files.atomic import atomic_path

TOLERANCE = 1e-4
"""By how much a number of a graph may differ from PyTorch's, relative to it where it exceeds 1."""
_TRACED, _COMPARED = 2, 3
"""Rows of the example that is traced, and of the one that is compared."""


def write_graph(path: Path, graph: Graph) -> dict[str, Any]:
    """Write a graph, and compare it with PyTorch on other inputs than those it was traced with.

    Args:
        path: of the file.
        graph: the function.

    Returns:
        its description: ``file``, ``bytes``, ``inputs`` and ``outputs``, each with ``name``,
        ``type`` and ``shape``, and the ``largest_difference`` from PyTorch. Inputs that change no
        output may be missing.

    Raises:
        ArtifactError: PyTorch cannot export it, or the file computes something else.
    """
    try:
        _export(path, graph.eval())
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        session = onnxruntime.InferenceSession(path, options, ["CPUExecutionProvider"])
        difference = _largest_difference(session, graph)
    except WorldModelsError:
        raise
    except Exception as error:  # PyTorch, ONNX Runtime and a package's model may raise any
        reason = str(error.__cause__ or error).strip().splitlines() or [type(error).__name__]
        raise ArtifactError(
            f"{path.name}: cannot be exported to ONNX ({reason[0]}); its methods have to be those"
            " that torch.export can trace, with a temperature that is a tensor"
        ) from error
    if not difference <= TOLERANCE:
        raise ArtifactError(
            f"{path.name}: differs from PyTorch by {difference:.1e}, more than {TOLERANCE:.0e};"
            " correct the methods of its class: they are traced once, without branches on values"
        )
    return {
        "file": path.name,
        "bytes": path.stat().st_size,
        "inputs": [_described(port) for port in session.get_inputs()],
        "outputs": [_described(port) for port in session.get_outputs()],
        "largest_difference": difference,
    }


def _export(path: Path, graph: Graph) -> None:
    example, rows = graph.example(_TRACED), torch.export.Dim("rows")
    with _quiet():
        program = torch.onnx.export(
            graph,
            example,
            input_names=list(graph.inputs),
            output_names=list(graph.outputs),
            dynamic_shapes=(tuple({0: rows} if part.dim() else None for part in example),),
            dynamo=True,
            verbose=False,
        )
    assert program is not None
    _free_names(program)
    with atomic_path(path) as temporary:
        program.save(temporary, external_data=False)


def _free_names(program: torch.onnx.ONNXProgram) -> None:
    """Rename the inner values of a graph that have the name of one of its outputs, which a file may
    not have: the exporter names a value after the function that makes it, for example ``mean``."""
    graph = program.model.graph
    outputs = {id(output): output.name for output in graph.outputs}
    for node in graph.all_nodes():
        for value in node.outputs:
            if id(value) not in outputs and value.name in outputs.values():
                value.name = f"inner_{value.name}"


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the exporter's warnings about its own code and packages it does not need."""
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)


@torch.no_grad()
def _largest_difference(session: onnxruntime.InferenceSession, graph: Graph) -> float:
    """Between a file's outputs and PyTorch's, relative to these where they exceed 1."""
    example = graph.example(_COMPARED)
    arrays = {name: part.numpy() for name, part in zip(graph.inputs, example, strict=True)}
    found = session.run(
        graph.outputs, {port.name: arrays[port.name] for port in session.get_inputs()}
    )
    differences = []
    for array, wanted in zip(found, graph(*example), strict=True):
        scale = wanted.double().abs().clamp(min=1)
        difference = (torch.from_numpy(array).double() - wanted.double()).abs() / scale
        differences.append(difference.max())
    return float(torch.stack(differences).max())  # of tensors: Python's max loses NaN


def _described(port: Any) -> dict[str, Any]:
    return {"name": port.name, "type": port.type, "shape": port.shape}
