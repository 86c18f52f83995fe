"""Parquet: columns as of a csv file, and lists of numbers; without pyarrow, an error says what to install."""

import sys
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal.core.errors import DataFault
from shoal.shell.readers import read_parquet


def written(path: Path, **columns: Any) -> Path:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.table(columns), path)
    return path


def test_columns_and_lists_of_numbers_become_x_and_the_label_y(tmp_path: Path) -> None:
    path = written(
        tmp_path / "a.parquet", age=[30, 40], ill=[0, 1], face=[[0.5, 1.5], [2.5, 3.5]], word=["a", "b"]
    )
    x, y = read_parquet(path, "ill", True, ignore=["word"])
    assert x.tolist() == [[30, 0.5, 1.5], [40, 2.5, 3.5]]
    assert y is not None
    assert y.tolist() == [0, 1]
    assert read_parquet(path, None, False, columns=["age"])[0].tolist() == [[30], [40]]


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"word": ["a", "b"], "y": [0, 1]}, "'word' does not hold numbers"),
        ({"x": [[1.0], [1.0, 2.0]], "y": [0, 1]}, "lists of them of one length"),
        ({"x": [1.0, None], "y": [0, 1]}, "1 values are missing"),
        ({"x": [1.0, 2.0]}, "no column 'y' for the classes"),
        ({"y": [0, 1]}, "no column of samples"),
        ({"day": [date(2020, 1, 1), date(2021, 1, 1)], "y": [0, 1]}, "'day' has times"),
        ({"at": [datetime(2020, 1, 1), datetime(2021, 1, 1)], "y": [0, 1]}, "'at' has times"),
        ({"took": [timedelta(1), timedelta(2)], "y": [0, 1]}, "'took' has times"),
        ({"x": [1.0, 2.0], "y": [date(2020, 1, 1), date(2021, 1, 1)]}, "'y' has times"),
    ],
)
def test_what_is_no_table_of_numbers_is_named(columns: dict[str, Any], said: str, tmp_path: Path) -> None:
    path = written(tmp_path / "a.parquet", **columns)
    with pytest.raises(DataFault, match=said):
        read_parquet(path, "y", True)


def test_a_table_without_rows_has_no_samples(tmp_path: Path) -> None:
    x, y = read_parquet(written(tmp_path / "a.parquet", x=np.empty(0), y=np.empty(0, int)), "y", True)
    assert (x.shape, None if y is None else y.shape) == ((0, 1), (0,))


@pytest.mark.parametrize("cut", [0, 4, 90])
def test_a_file_that_is_cut_off_is_named(cut: int, tmp_path: Path) -> None:
    path = written(tmp_path / "a.parquet", x=np.arange(99.0), y=np.arange(99))
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(DataFault, match="not a whole parquet file"):
        read_parquet(path, "y", True)


def test_without_pyarrow_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(DataFault, match="pyarrow is not installed") as caught:
        read_parquet(tmp_path / "a.parquet", "y", True)
    assert "pip install pyarrow" in caught.value.hint
