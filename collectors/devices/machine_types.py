"""What a machine type should show, as data."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from transport.config_tree import build, read_table

ANY: Final = "any"


@dataclass(frozen=True, slots=True)
class MachineType:
    """Limits; `machine_types.toml` says what each means. None: not checked."""

    gpu_count: int | None = None
    nvlinks: int | None = None
    pcie_width: int | None = None
    sm_clock_max_mhz: int | None = None
    temperature_at_most_celsius: int | None = None
    ecc_corrected_at_most: int | None = None
    ecc_uncorrected_at_most: int | None = None
    rows_uncorrected_at_most: int | None = None
    throttle_allowed: int | None = None
    xids: tuple[int, ...] = ()
    host_gb_per_s: int | None = None
    host_link_percent: int | None = None
    peer_gb_per_s: int | None = None


def machine_types(path: Path | None = None) -> dict[str, MachineType]:
    """Read the table (None: the shipped one); what a type leaves out is that of `any`.

    Raises      ConfigError
    """
    path = path or Path(__file__).with_name("machine_types.toml")
    tables = read_table(path)
    common = tables.get(ANY, {})
    return {
        name: build(MachineType, {**common, **table}, f"{path}: {name}.")
        for name, table in tables.items()
    }
