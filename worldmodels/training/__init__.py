"""Training of encoder and dynamics model: data, fit loop, validation, checkpoints, resumption."""
