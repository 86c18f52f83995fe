"""The server halves' kit. scikit-learn and scipy may be used here, torch never."""
