"""Stored runs as pages that can be sent to a colleague: one fold more over what happened."""
