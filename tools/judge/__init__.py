"""Gives verdicts: what is right, how it is run safely, how long it takes, and who may ask."""
