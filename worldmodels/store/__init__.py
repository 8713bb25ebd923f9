"""A copy of a run in a store: uploaded while the run goes on, restored on another machine."""
