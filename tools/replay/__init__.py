"""A launch plan executed: which steps matter, the steps one by one, and the CPU interpreter's process."""
