"""Models without PyTorch: ONNX Runtime, in a process of its own, behind the same tasks.

session.py    the runtime, with limits
runtime.py    what a device's process without PyTorch can do
predict.py    predictions of a file
verdict.py    whether a new model may replace the one that is used
serving.py    predictions over HTTP and a Unix socket, by the process of endpoint.py
commands.py   `run --serve` and `predict --follow`
ready.py      the end of an installation
follow.py     the model that is served, exchanged when there is a better one
"""
