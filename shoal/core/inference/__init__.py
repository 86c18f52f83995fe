"""What a device needs to use models and not to train them, in numpy: neither PyTorch nor scikit-learn.

Where to look first:
  network.py     a network as this package sees it: arrays in, arrays out
  newcomer.py    the tasks that such a device can do: choose among models, describe its data
  graph/         a network as an ONNX graph, checked before any runtime opens it

The device kit, which trains with PyTorch, stands on this package: odds, moments and releases are one code.
"""
