"""The device half's kit: what an algorithm needs on a device, built on PyTorch. Never scikit-learn, never
gRPC.

Where to look first:
  learner.py    what an author provides: a network, and how to read, train and measure it
  context.py    what a device half is given: learner, data, network, random numbers
  standard.py   the answers to the standard messages; most device halves are this module
"""
