"""Runs on disk: stage folders, manifests, integrity, locks, metrics, provenance."""
