"""Federated training of a fleet in one process: `shoal.simulate`. PyTorch and scikit-learn meet here only."""
