"""One file a stage, each the recipe of its part of the paper."""
