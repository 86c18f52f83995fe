"""The history of a run: what happened in each round, for people. No run depends on it."""
