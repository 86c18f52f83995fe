"""Models without PyTorch: ONNX Runtime, in a process of its own, behind the same tasks.

session.py    the runtime, without custom operators and files
trial.py      the runtime tried first, and the limit of memory
runtime.py    what a device's process without PyTorch can do
predict.py    predictions by a graph, in a process of its own
verdict.py    whether a new model may replace the one that is used
serving.py    predictions over HTTP and a Unix socket, by the process of endpoint.py
shadow.py     a release on trial beside the one that is used
messages.py   what the processes say to each other
commands.py   `run --serve`
follow.py     the model that is served, exchanged when there is a better one
remembering.py  no process where nothing has changed
ready.py      the end of an installation
"""
