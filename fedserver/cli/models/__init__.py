"""`fedserver model`: models as files, and the weights that a run starts from."""
