"""Recorded scenarios of the round engine: what is fed to it, and every effect that comes out."""
