"""One folder for each algorithm; `shoal.core.algorithm.discover` finds them."""
