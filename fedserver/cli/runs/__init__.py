"""`fedserver run ...`."""
