"""Task files: found, read, and written from a person's own PyTorch code."""
