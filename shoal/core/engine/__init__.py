"""The engine: rounds, sessions, events and effects. It knows no algorithm; start reading in rounds.py."""
