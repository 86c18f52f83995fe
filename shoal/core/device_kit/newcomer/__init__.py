"""How a newcomer chooses among a run's models by its own samples; see docs/algorithms.md.

choosing.py    the device half: the models and the densities, tried on the samples, lead to one model
odds.py        what the models' predictions are evidence of
nearness.py    what the clusters' densities are evidence of
"""
