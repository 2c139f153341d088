"""PTX candidates as files: made of a Triton candidate and its plans, or guessed around a text."""
