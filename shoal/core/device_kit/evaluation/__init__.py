"""How good a model is on a device's own samples."""
