"""What a device needs to use models and not to train them, in numpy: neither PyTorch nor scikit-learn.

Where to look first:
  newcomer.py    the questions that any newcomer answers: choose among models, vote for one, describe data
  network.py     a network as this package sees it: arrays in, arrays out
  graph/         a network as an ONNX graph, checked before any runtime opens it

Devices that train with PyTorch answer these questions by the same code: of a network, only what it computes
is different (`shoal.core.device_kit.network`, `fedclient.light.session`).
"""
