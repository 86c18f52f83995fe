"""The device half's kit: what an algorithm needs of a device, on PyTorch. Never scikit-learn, never gRPC.

Where to look first:
  learner.py    what an author brings: a network, and how to read it
  bench.py      what a device half is handed: learner, data, model, chance
  standard.py   the answers to the standard messages; most device halves are this module
"""
