"""Releases that a device whose owner allows it takes by itself, tries, and leaves again if they fail."""
