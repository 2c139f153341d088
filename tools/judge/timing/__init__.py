"""How long a plan takes: baselines, benchmark setup, timing runs, statistics."""
