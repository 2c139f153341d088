"""A plan run on guarded memory in the runner's process."""
