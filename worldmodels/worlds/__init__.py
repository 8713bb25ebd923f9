"""Worlds: what a controller acts in, real or dreamt, many lanes in lockstep."""
