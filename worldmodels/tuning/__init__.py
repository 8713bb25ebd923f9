"""Which values a sweep tries next, by Optuna."""
