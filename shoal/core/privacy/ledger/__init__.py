"""A device's ledger: what its lines say (`entries`), how they are chained (`lines`), and their sums (`book`).

This package touches no files; `fedclient.store.ledger` does.
"""
