"""Extends worldmodels: see README.md and pyproject.toml."""
