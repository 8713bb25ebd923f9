"""An encoder as an ONNX graph, compared with PyTorch."""

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch

from worldmodels.agents.folder import Agent
from worldmodels.export.graphs import EncoderGraph
from worldmodels.export.onnx_files import TOLERANCE, write_graph


def exported_shape(agent: Agent, path: Path) -> Any:
    """Write the encoder's graph and compare it with PyTorch; the shape of one of its inputs."""
    graph = EncoderGraph(agent)
    described = write_graph(path, graph)
    session = onnxruntime.InferenceSession(path)
    (image,) = graph.example(5)
    mean, _ = session.run(["mean", "logvar"], {"image": image.numpy()})
    with torch.no_grad():
        wanted = agent.encoder.encode(image).mean
    np.testing.assert_allclose(mean, wanted, rtol=TOLERANCE, atol=TOLERANCE)
    return described["inputs"][0]["shape"][1:]
