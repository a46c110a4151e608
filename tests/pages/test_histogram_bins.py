"""Bins of the catalogue, said for people."""

from __future__ import annotations

import pytest

from pages.wording import bin_low, bin_said


@pytest.mark.parametrize(
    ("name", "low", "said"),
    [
        ("2^12..2^13 ns", 4096, "4.1–8.2 µs"),
        ("2^31.. ns", 2**31, "2.1 s and more"),
        ("2^20..2^21 bytes", 2**20, "1–2 MiB"),
        ("2^0..2^1 bytes", 1, "1–2 B"),
        ("70..75 celsius", 70, "70–75 °C"),
        ("1550.. watt", 1550, "1,550 W and more"),
        ("gemm", 0, "gemm"),
        ("2^999..2^1000 ns", 0, "2^999..2^1000 ns"),
        ("70..75 <b>", 0, "70..75 <b>"),
    ],
)
def test_bin_is_said_in_its_unit_and_a_stranger_as_it_stands(
    name: str, low: float, said: str
) -> None:
    assert (bin_low(name), bin_said(name)) == (low, said)
