"""The machine: cores, threads, devices, memory, disk, signals, standard streams."""
