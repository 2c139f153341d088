"""The judge's processes, and what they are asked."""
