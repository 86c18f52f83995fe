"""New models from the reports of a round, in this process or by workers."""
