"""Which conversations a run holds, and what each begins with."""
