"""One file for each stage of the paper's pipeline, read from top to bottom."""
