"""Clusters from distances, and who belongs to which."""
