"""Model-free baselines: algorithms of Stable-Baselines3 in the environments of this project."""
