"""Triton: its IR as text, parsed and interpreted on the CPU."""
