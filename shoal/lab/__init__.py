"""Experiments: shifts, data sets, the papers' tables and the demo. PyTorch and scikit-learn meet here
only."""
