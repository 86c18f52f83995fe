"""The papers' tables: `fedserver table --paper flux --table 1`.

A table is a grid of methods and columns; a cell is one experiment at one seed. `published/` has what the
papers print, one CSV file a table, so that each cell can stand beside its original; `docs/measured/` has
cells that were run here, as small JSON, so that others can compare theirs.

    table      what a table is           shared      methods and columns that several have
    campaign   runs the cells, in pieces  summary     means and spreads, beside the paper's
    worth      which cells tell most
    markdown   for people                 plot        for people in a hurry
    flux, flux_scale, flux_ablations, feroma, feroma_more, fedrc, fmcl, cornflqs    the tables themselves
"""

from collections.abc import Mapping

from shoal.core.errors import ConfigError
from shoal_lab.tables.papers import (
    cornflqs,
    fedrc,
    feroma,
    feroma_more,
    flux,
    flux_ablations,
    flux_scale,
    fmcl,
)
from shoal_lab.tables.table import Table

_MODULES = (flux, flux_scale, flux_ablations, feroma, feroma_more, fedrc, fmcl, cornflqs)
TABLES: Mapping[tuple[str, int], Table] = {
    (table.paper, table.number): table for module in _MODULES for table in module.TABLES
}

_DERIVED = "its figures are means of other tables' cells"
_WORDS = "it has no figures of experiments"
ELSEWHERE: Mapping[tuple[str, int], str] = {
    ("flux", 2): _WORDS,
    ("flux", 3): _WORDS,
    ("flux", 4): "it measures distances of descriptors, without training",
    ("flux", 51): f"{_DERIVED}: run 52 to 55",
    ("flux", 59): "it needs CheXpert, and AUC of several labels at once",
    ("feroma", 2): f"{_DERIVED}: run table 1",
    ("feroma", 3): _WORDS,
    ("feroma", 29): f"{_DERIVED}: run 30 to 33",
    ("feroma", 46): f"{_DERIVED}: run 47 to 50",
    ("fedrc", 3): "it needs Airline, and test sets of Electricity that the paper does not describe",
    ("cornflqs", 1): f"{_DERIVED}: run table 3",
    ("cornflqs", 2): f"{_DERIVED}: run table 3",
}
"""Tables of the papers that are not here, and why."""


def find(paper: str, number: int) -> Table:
    """The table of that paper with that number. Raises ConfigError, which says why a table is not here."""
    if (paper, number) in TABLES:
        return TABLES[paper, number]
    known: dict[str, list[str]] = {}
    for name, each in TABLES:
        known.setdefault(name, []).append(str(each))
    listed = "; ".join(f"--paper {name} --table {', '.join(numbers)}" for name, numbers in known.items())
    reason = f": {ELSEWHERE[paper, number]}" if (paper, number) in ELSEWHERE else ""
    raise ConfigError(f"there is no table {number} of {paper!r} here{reason}", f"there are: {listed}")
