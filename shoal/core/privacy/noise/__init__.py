"""Noise that a release may rest on: exact chances and the discrete Gaussian, one draw or many."""
