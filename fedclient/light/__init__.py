"""Models without PyTorch: ONNX Runtime, in a process of its own, behind the same tasks.

session.py    the runtime, with limits
runtime.py    what a device's process without PyTorch can do
predict.py    predictions of a file
serving.py    predictions over HTTP and a Unix socket
follow.py     the model that is served, exchanged when there is a better one
"""
