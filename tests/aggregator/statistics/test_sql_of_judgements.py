"""SQL says what the functions of Python say, of which it is the copy inside the database."""

from __future__ import annotations

from collections.abc import Iterator

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from aggregator.statistics.discoveries import judged_sql, p_values, q_values, upper_tail_sql
from aggregator.statistics.ratios import Floats, fieller, shares_sql

AMOUNTS = st.floats(-1e15, 1e15)
VARIANCES = st.floats(0, 1e20)
TERMS = ("x", "d", "vx", "vd", "cov", "extra")
BOUNDS = st.floats(0, 1e14)


@pytest.fixture(scope="module")
def database() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect(":memory:") as opened:
        yield opened


def ask(database: duckdb.DuckDBPyConnection, sql: str, rows: pa.Table) -> dict[str, Floats]:
    database.register("rows", rows)
    found = database.execute(sql).fetchnumpy()
    return {name: np.ma.filled(column, np.nan) for name, column in found.items()}


@settings(max_examples=25)
@given(arrays(np.float64, 64, elements=st.floats(-45, 45)))
@example(np.linspace(37.5, 38.5, 64))
def test_upper_tail_is_that_of_python(database: duckdb.DuckDBPyConnection, z: Floats) -> None:
    z = np.concatenate([z, [0.0, 4.0, -4.0, 0.46875 * 2**0.5, np.inf, -np.inf, np.nan]])
    found = ask(database, upper_tail_sql("FROM rows"), pa.table({"z": z}))["p_value"]
    # Numbers below the least normal one have no twelve digits.
    least = 1e-12 * np.finfo(np.float64).tiny
    np.testing.assert_allclose(found, p_values(z), rtol=1e-12, atol=least)


@settings(max_examples=25)
@given(st.lists(st.tuples(AMOUNTS, st.floats(1e-3, 1e15)), min_size=1, max_size=40), st.booleans())
def test_q_value_is_that_of_python(
    database: duckdb.DuckDBPyConnection, cells: list[tuple[float, float]], dependent: bool
) -> None:
    value, error = np.array(cells).T
    names = {"series": "minute", "family": "mix"}
    rows = pa.table({"row_id": range(len(cells)), "value": value, "standard_error": error})
    for name, text in names.items():
        rows = rows.append_column(name, pa.array([text] * len(cells)))
    sql = judged_sql("FROM rows", "value", str(dependent).lower(), ", ".join(names))
    found = ask(database, f"FROM ({sql}) ORDER BY row_id", rows)
    assert set(found) == {*rows.column_names, "q_value"}
    expected = q_values(value, error, independent=not dependent)
    np.testing.assert_allclose(found["q_value"], expected, rtol=1e-12)


@settings(max_examples=25)
@given(
    st.lists(
        st.tuples(AMOUNTS, AMOUNTS, VARIANCES, VARIANCES, AMOUNTS, VARIANCES, BOUNDS),
        min_size=1,
        max_size=40,
    ),
    st.booleans(),
)
def test_shares_are_those_of_python_to_the_last_bit(
    database: duckdb.DuckDBPyConnection, cells: list[tuple[float, ...]], sampled: bool
) -> None:
    inputs = dict(zip((*TERMS, "off"), np.array(cells).T, strict=True))
    inputs["extra"] = inputs["extra"] * sampled
    rows = pa.table({"row_id": range(len(cells)), **inputs})
    found = ask(database, f"FROM ({shares_sql('FROM rows')}) ORDER BY row_id", rows)
    assert set(found) == {"row_id", "share", "share_low", "share_high"}
    expected = fieller(*inputs.values())
    assert np.array_equal(found["share"], expected.value, equal_nan=True)
    assert np.array_equal(found["share_low"], expected.low, equal_nan=True)
    assert np.array_equal(found["share_high"], expected.high, equal_nan=True)


def test_share_of_noise_is_none_and_of_a_whole_is_there(
    database: duckdb.DuckDBPyConnection,
) -> None:
    inputs = {"x": [5.0, 5.0], "d": [10.0, 10.0], "vx": [1.0, 1.0], "vd": [1.0, 99.0]}
    rows = pa.table({**inputs, "cov": [0.0, 0.0], "extra": [0.0, 0.0], "off": [0.0, 0.0]})
    found = ask(database, shares_sql("FROM rows"), rows)["share"]
    assert found[0] == pytest.approx(0.5)
    assert np.isnan(found[1])
