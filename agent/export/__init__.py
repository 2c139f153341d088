"""Stored trajectories as training data: one fold more over what happened."""
