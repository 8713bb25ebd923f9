"""The fit loop: steps, validation, checkpoints, resumption."""
