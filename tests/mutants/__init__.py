"""Deliberate breakages of the product, each of which a small set of named tests has to find: `make mutants`.

    python -m tests.mutants                 all of them, two at a time, with a table at the end
    python -m tests.mutants NAME ...        some of them
    python -m tests.mutants --list          what there is

`listed.py` has them. Each is applied to a copy of the packages, and its tests are run there. A mutant whose
tests pass has survived: then a test is missing, or the code that it breaks is not needed.
"""
