"""Neural networks and their losses: pure torch, no configuration, no files, no devices."""
