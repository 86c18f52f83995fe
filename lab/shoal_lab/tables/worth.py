"""Which experiments tell most for their time, over all tables of the papers that a data set has.

A figure of a table is a mean over experiments, its parts. An experiment is worth the share that it gives to
each figure that it is in, and more where the table has few figures so far: the first ones of a table tell
more than the last ones of another. Of equal worth, what trains fewer devices for fewer rounds comes first.
"""

import heapq
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace

from shoal_lab.experiment import Experiment
from shoal_lab.tables.table import Cell, Table

USUAL_ROUNDS = 20
"""Of an experiment whose table leaves them to the preset."""


def cells_of(tables: Sequence[Table], base: Experiment, seeds: Sequence[int]) -> list[tuple[Table, Cell]]:
    """The cells of all tables that have this data set, under names that are unique among them."""
    return [
        (table, replace(cell, method=replace(cell.method, label=f"{table.name} {cell.method.label}")))
        for table in tables
        if base.dataset in table.datasets
        for cell in table.cells(base, seeds)
    ]


def in_order(
    cells: Sequence[tuple[Table, Cell]], key: Callable[[Cell], Hashable], done: Callable[[Cell], bool]
) -> list[Cell]:
    """The cells that are not done, those first that tell most for their time.

    key: what is the same for cells that are the same experiment. Such cells follow each other.
    """
    alike: dict[Hashable, list[tuple[Table, Cell]]] = {}
    for table, cell in cells:
        alike.setdefault(key(cell), []).append((table, cell))
    figures: dict[str, float] = defaultdict(float)
    due = []
    for name, same in alike.items():
        if not done(same[0][1]):
            due.append(name)
            continue
        for table, cell in same:
            figures[table.name] += share(cell)

    def worth(name: Hashable) -> float:
        gain = sum(share(cell) / (1.0 + figures[table.name]) for table, cell in alike[name])
        return gain / effort(alike[name][0][1].experiment)

    # What an experiment is worth only falls as others are chosen, so most need not be looked at again.
    heap = [(-worth(name), number, name) for number, name in enumerate(due)]
    heapq.heapify(heap)
    found: list[Cell] = []
    while heap:
        _, number, name = heapq.heappop(heap)
        now = -worth(name)
        if heap and (now, number) > heap[0][:2]:
            heapq.heappush(heap, (now, number, name))
            continue
        found += [cell for _, cell in alike[name]]
        for table, cell in alike[name]:
            figures[table.name] += share(cell)
    return found


def share(cell: Cell) -> float:
    """Of a figure that a cell gives."""
    return 1.0 / len(cell.column.parts)


def effort(experiment: Experiment) -> float:
    """How long an experiment takes beside others, roughly: how often a device trains in it."""
    return float(experiment.clients * (experiment.rounds or USUAL_ROUNDS))
