"""Pressure and RDMA counters from folders that look like the kernel's."""

from __future__ import annotations

from pathlib import Path

import pytest

from collectors.host.pressure import PressureSource, stall_totals
from collectors.host.rdma import RdmaSource
from collectors.interface import SourceUnavailable

SECOND = 1_000_000_000


def pressure(some_us: int, full_us: int) -> str:
    average = "avg10=0.00 avg60=0.00 avg300=0.00"
    return f"some {average} total={some_us}\nfull {average} total={full_us}\n"


def test_pressure_is_what_grew_in_nanoseconds(tmp_path: Path) -> None:
    (tmp_path / "cpu").write_text(pressure(1_000, 10))
    (tmp_path / "io").write_text(pressure(500, 400))
    source = PressureSource(tmp_path)
    assert source.probe() is None
    source.start()
    assert list(source.drain(SECOND)) == []
    (tmp_path / "cpu").write_text(pressure(1_250, 10))
    (table,) = source.drain(2 * SECOND)
    assert table.column("some_ns") == {"cpu": 250_000, "io": 0}
    assert table.column("full_ns") == {"cpu": 0, "io": 0}
    assert (table.boottime_ns, table.span_ns) == (SECOND, SECOND)


def test_pressure_absent_says_so_in_one_line(tmp_path: Path) -> None:
    reason = PressureSource(tmp_path / "none").probe()
    assert reason is not None
    assert "does not exist" in reason


@pytest.mark.parametrize("text", [b"some avg10=0\n", b"most total=1\n", b"some total=-1\n"])
def test_pressure_refuses_what_the_kernel_would_not_write(text: bytes) -> None:
    with pytest.raises(SourceUnavailable, match="expected"):
        stall_totals(text, "cpu")


def make_ports(folder: Path) -> Path:
    """Two RDMA devices as files."""
    for device in ("mlx5_0", "mlx5_1"):
        port = folder / device / "ports" / "1"
        for kind, counter, value in (
            ("counters", "port_xmit_data", 100),
            ("counters", "symbol_error", 3),
            ("hw_counters", "out_of_sequence", 7),
            ("hw_counters", "lifespan", 10),
        ):
            (port / kind).mkdir(parents=True, exist_ok=True)
            (port / kind / counter).write_text(f"{value}\n")
    return folder


@pytest.fixture
def two_ports(tmp_path: Path) -> Path:
    return make_ports(tmp_path)


def test_rdma_gives_growth_by_port_and_bytes_for_words(two_ports: Path) -> None:
    source = RdmaSource(two_ports)
    assert source.probe() is None
    source.start()
    assert list(source.drain(SECOND)) == []
    counters = two_ports / "mlx5_1/ports/1"
    (counters / "counters/port_xmit_data").write_text("350\n")
    (counters / "hw_counters/out_of_sequence").write_text("8\n")
    (table,) = source.drain(2 * SECOND)
    assert table.rows == ("mlx5_0/1", "mlx5_1/1")
    assert table.column("port_xmit_bytes") == {"mlx5_0/1": 0, "mlx5_1/1": 1_000}
    assert table.column("out_of_sequence") == {"mlx5_0/1": 0, "mlx5_1/1": 1}
    assert "lifespan" not in table.columns


def test_rdma_counter_that_fails_or_is_reset_is_a_gap_not_a_zero(two_ports: Path) -> None:
    source = RdmaSource(two_ports)
    source.start()
    list(source.drain(SECOND))
    port = two_ports / "mlx5_0/ports/1/counters"
    (port / "symbol_error").write_text("N/A (no PMA)\n")
    (port / "port_xmit_data").write_text("0\n")
    tables = {table.rows: table for table in source.drain(2 * SECOND)}
    assert tables["mlx5_0/1",].columns == ("out_of_sequence",)
    assert "symbol_error" in tables["mlx5_1/1",].columns


def test_rdma_without_devices_says_so(tmp_path: Path) -> None:
    reason = RdmaSource(tmp_path / "none").probe()
    assert reason is not None
    assert "no RDMA device" in reason
