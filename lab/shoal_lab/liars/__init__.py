"""What one lying device can do to the others: ten attacks, tried on every algorithm.

`attacks` says what a liar answers, `trial` runs a small real fleet with one liar in it, and `campaign` writes
the table of all trials. `make liars` writes docs/liars.md.
"""
