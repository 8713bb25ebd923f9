"""Processes that do jobs: the pool, and the messages between its ends."""
