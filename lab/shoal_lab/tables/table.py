"""What a table of a paper is: methods, columns, and the experiment behind each cell."""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from importlib.resources import files
from pathlib import Path
from typing import Any

from shoal.core.errors import ConfigError, near
from shoal_lab.datasets import images, natural
from shoal_lab.experiment import Experiment


@dataclass(frozen=True)
class Method:
    """A row: what the paper calls it, and which algorithm, preset and parameters that is here.

    fields: further fields of its experiments. note: where it differs from the paper, for people.
    """

    label: str
    algorithm: str
    preset: str = "paper"
    changes: Mapping[str, Any] = field(default_factory=dict)
    fields: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""


MEAN = "mean"
UNSCALED: Mapping[str, Any] = {}
WHOLE: Mapping[str, Mapping[str, Any]] = {"": {}}


@dataclass(frozen=True)
class Column:
    """A setting: its name, and the fields of `Experiment` that make it. measures: what is reported of it.

    parts: further fields, by name, of the experiments of which it is the mean; one, unless the paper prints a
    mean over several. only: the data sets that have this column; none for all.
    """

    name: str
    measures: Sequence[str]
    options: Mapping[str, Any]
    parts: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: WHOLE)
    only: Sequence[str] = ()


@dataclass(frozen=True)
class Cell:
    """One experiment: a method in a part of a column at a seed. `name` is unique in its table."""

    method: Method
    column: Column
    part: str
    experiment: Experiment

    @property
    def name(self) -> str:
        column = f"{self.column.name}-{self.part}" if self.part else self.column.name
        return f"{self.method.label}--{column}--seed-{self.experiment.seed}"


@dataclass(frozen=True)
class Figure:
    """A mean and its standard deviation over seeds; the spread is NaN where none is known."""

    mean: float
    spread: float


@dataclass(frozen=True)
class Table:
    """measures: by name, where in an experiment's result the figure is. datasets: those of the paper; with
    one's own, there are no figures of the paper beside ours.

    by_dataset: further fields of the experiments on some of them; its "changes" are other values for
    parameters that a method sets. note: what differs from the paper in all
    rows.
    """

    paper: str
    number: int
    title: str
    measures: Mapping[str, Sequence[str]]
    datasets: Sequence[str]
    methods: Sequence[Method]
    columns: Sequence[Column]
    by_dataset: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    note: str = ""

    @property
    def name(self) -> str:
        return f"{self.paper}-{self.number}"

    def cells(
        self,
        base: Experiment,
        seeds: Sequence[int],
        methods: Sequence[str] = (),
        columns: Sequence[str] = (),
        scale: Mapping[str, Any] = UNSCALED,
    ) -> list[Cell]:
        """The cells of these methods and columns, all where none are named; `base` has the rest.

        methods: labels; columns: names or patterns such as "pyx-*". scale: fields of `Experiment`, such as
        the number of devices, that are to be others than the paper's; its "changes" are parameters of all
        methods. Raises ConfigError for what is not there.
        """
        if base.dataset not in self.datasets and not is_path(base.dataset):
            known = ", ".join(self.datasets)
            hint = f"it has {known}, and takes the path of a data set of your own"
            raise ConfigError(f"table {self.name} is not for {base.dataset!r}", hint)
        here = self.columns_of(base.dataset)
        rows = _chosen("method", self.methods, [method.label for method in self.methods], methods)
        chosen = _chosen("column", here, [column.name for column in here], columns)
        common = self.by_dataset.get(base.dataset, {})
        return [
            Cell(
                method,
                column,
                part,
                _experiment(base, method, (column.options, own), common, scale, seed),
            )
            for seed in seeds
            for column in chosen
            for method in rows
            for part, own in column.parts.items()
        ]

    def columns_of(self, dataset: str) -> list[Column]:
        """The columns that a data set has."""
        return [column for column in self.columns if not column.only or dataset in column.only]

    def published(self, dataset: str) -> dict[tuple[str, str, str], Figure]:
        """What the paper prints, by method, column and measure; the column `MEAN` is its mean over all."""
        source = files("shoal_lab.tables") / "published" / f"{self.name}.csv"
        with source.open(encoding="utf-8") as file:
            return {
                (row["method"], row["column"], row["measure"]): Figure(
                    float(row["mean"]), float(row["spread"] or "nan")
                )
                for row in csv.DictReader(file)
                if row["dataset"] == dataset
            }


def is_path(dataset: str) -> bool:
    """Whether a data set is one's own, and not one of those that have names."""
    return dataset not in (*images.NAMES, *natural.NAMES) and Path(dataset).exists()


def _experiment(
    base: Experiment,
    method: Method,
    of_column: Sequence[Mapping[str, Any]],
    of_dataset: Mapping[str, Any],
    scale: Mapping[str, Any],
    seed: int,
) -> Experiment:
    changes = {**method.changes}
    changes |= {name: value for name, value in of_dataset.get("changes", {}).items() if name in changes}
    options = dict(vars(base))
    for fields in (of_column[0], of_dataset, *of_column[1:], method.fields, scale):
        options |= fields
    for fields in (*of_column, scale):
        changes |= fields.get("changes", {})
    options |= {
        "algorithm": method.algorithm,
        "preset": method.preset,
        "changes": changes,
        "seed": seed,
    }
    return Experiment(**options)


def _chosen(kind: str, items: Sequence[Any], names: Sequence[str], wanted: Sequence[str]) -> list[Any]:
    """The items that some pattern of `wanted` names, in their own order, whatever the case."""
    for pattern in wanted:
        if not any(fnmatchcase(name.lower(), pattern.lower()) for name in names):
            raise ConfigError(f"the table has no {kind} {pattern!r}", near(pattern, list(names)))
    return [
        item
        for item, name in zip(items, names, strict=True)
        if not wanted or any(fnmatchcase(name.lower(), pattern.lower()) for pattern in wanted)
    ]
