"""Worlds: the environment and the learned model behind one interface, in vectorised form."""
