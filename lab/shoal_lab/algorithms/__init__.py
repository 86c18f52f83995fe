"""The algorithms that the papers compare theirs with. Each is a plug-in: an entry point of `shoal-lab`."""
