"""The toolkit of the server halves. It may use scikit-learn and SciPy, but never torch."""
