"""A network as an ONNX graph without weights: read, checked and completed here, without any runtime.

    wire.py       protobuf's fields, read strictly and written
    model.py      which graphs are taken from a server, and why others are not
    operators.py  the operators that they may use
    binding.py    ONNX files, written: a graph for a run, and a graph with the weights of one model

A graph of ours has the samples as input "x" and every tensor of the learner's state as one more input, under
its own name. So one graph serves the models of all clusters, and its bytes do not depend on any of them.
"""
