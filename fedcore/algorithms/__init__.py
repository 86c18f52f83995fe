"""One folder for each algorithm; `fedcore.algorithm.discover` finds them."""
