"""The stages, one file each; `context`, `runtime` and `inputs` are what they work with."""
