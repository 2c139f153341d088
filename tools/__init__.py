"""Does: what can be done to a kernel. Knows no language model, no database, no terminal."""
