"""One conversation with a model about one task: its tools, its memory, its end."""
