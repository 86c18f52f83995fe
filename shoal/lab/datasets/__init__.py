"""Data sets for experiments, and what is done to their images.

Nothing here downloads anything. `images.load` reads MNIST and Fashion-MNIST from a folder of the caller's,
and scikit-learn's bundled digits from nowhere at all.
"""
