"""Verbs to set up a device, to find out what is wrong with it, and to take it away."""
