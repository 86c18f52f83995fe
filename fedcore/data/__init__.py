"""Data sets: the one shape they have in memory, and readers for the ones used in comparisons.

Nothing here downloads anything. `load` reads MNIST and Fashion-MNIST from a folder of the caller's, and
scikit-learn's bundled digits from nowhere at all.
"""

from fedcore.data.dataset import Dataset
from fedcore.data.images import NAMES, load

__all__ = ["NAMES", "Dataset", "load"]
