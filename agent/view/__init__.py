"""What a person sees of a run: a fold over events, and pure renderings of it. Knows no loop and no database."""
