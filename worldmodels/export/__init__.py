"""Trained agents for other programs: ONNX graphs, and a page that dreams in a browser."""
