"""The verbs of an experimenter, listed by `fedserver`."""
