"""New models from the reports of a round."""
