"""Kinds of hardware that plans run on, one folder each."""
