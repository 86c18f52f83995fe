"""A device's ledger: what its lines say (`entries`), how they are chained (`lines`), and their sums (`book`).

This package touches no files; `fedclient.store.ledger` does.
"""

from shoal.core.privacy.ledger.book import Book
from shoal.core.privacy.ledger.entries import (
    Debit,
    Entry,
    Failed,
    FailedBefore,
    GivenBack,
    Open,
    Release,
    Reserved,
    Summed,
    chosen,
    paid,
    spent,
    versions,
)
from shoal.core.privacy.ledger.lines import Chain, Head, head_from, line_of

__all__ = [
    "Book",
    "Chain",
    "Debit",
    "Entry",
    "Failed",
    "FailedBefore",
    "GivenBack",
    "Head",
    "Open",
    "Release",
    "Reserved",
    "Summed",
    "chosen",
    "head_from",
    "line_of",
    "paid",
    "spent",
    "versions",
]
