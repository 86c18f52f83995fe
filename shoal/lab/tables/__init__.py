"""The papers' tables, one module each: `fedserver table --paper flux --table 1`.

A table is a grid of methods and columns; a cell is one experiment at one seed. `published/` has what the
papers print, one CSV file a table, so that each cell can stand beside its original.

    table      what a table is           flux, ...   the tables themselves
    campaign   runs the cells, in pieces  summary     means and spreads, beside the paper's
    markdown   for people                 plot        for people in a hurry
"""

from collections.abc import Mapping

from shoal.core.errors import ConfigError
from shoal.lab.tables import cornflqs, fedrc, feroma, flux
from shoal.lab.tables.table import Table

TABLES: Mapping[tuple[str, int], Table] = {
    (table.paper, table.number): table for table in (flux.TABLE, feroma.TABLE, fedrc.TABLE, cornflqs.TABLE)
}


def find(paper: str, number: int) -> Table:
    """The table of that paper with that number. Raises ConfigError."""
    if (paper, number) in TABLES:
        return TABLES[paper, number]
    known = ", ".join(f"--paper {paper} --table {number}" for paper, number in TABLES)
    raise ConfigError(f"there is no table {number} of {paper!r} here", f"there are: {known}")
