"""Decides: who writes the next kernel, in what order, within which budget."""
