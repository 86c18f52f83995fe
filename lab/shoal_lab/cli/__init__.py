"""Verbs of the laboratory, for `fedserver`."""
