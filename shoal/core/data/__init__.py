"""Data sets in memory, the views that a device has of its own, and the version that tells them apart."""
