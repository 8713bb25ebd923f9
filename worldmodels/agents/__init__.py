"""Trained networks on disk: which classes a file may name, a network's file, an agent's folder."""
