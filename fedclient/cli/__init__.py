"""The verbs of `fedclient`, one module for each."""
