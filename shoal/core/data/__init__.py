"""Data sets in memory, the views that a device has of its data, and the version that identifies them."""
