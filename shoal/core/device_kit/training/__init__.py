"""Training on a device: the plain way, with a privacy guarantee, and with a personal model."""
