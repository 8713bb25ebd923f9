"""Recorded and encoded episodes on disk, and the batches made of them."""
