"""The papers' experiments, in one process."""
