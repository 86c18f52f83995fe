"""What lying devices can do to the others: attacks, tried on every algorithm.

`attacks` says what a liar answers, `trial` runs a small real fleet with one liar in it, and `contract` judges
it. `python -m benchmarks.influence` tries liars in number, and writes docs/liars.md.
"""
