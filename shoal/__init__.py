"""Shoal: clustered federated learning for real devices."""

__version__ = "0.1.0"
