"""Worlds: what a controller acts in, real or dreamt, many environments in lockstep."""
