"""Which values a sweep tries next, by Optuna, and how a population is trained."""
