"""How often large training fleets are interrupted, as published: what a plan must see above noise.

Unexpected interruptions of Llama 3 405B's pre-training: 54 days, 16,384 GPUs in hosts of 8.
Source      Llama Team, "The Llama 3 Herd of Models", 2024, table 5
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

LLAMA3_DAYS: Final = 54
LLAMA3_HOSTS: Final = 2048

LLAMA3_INTERRUPTIONS: Final = (
    ("faulty GPU", 148),
    ("GPU HBM3 memory", 72),
    ("software bug", 54),
    ("network switch or cable", 35),
    ("unplanned host maintenance", 32),
    ("GPU SRAM memory", 19),
    ("GPU system processor", 17),
    ("NIC", 7),
    ("NCCL watchdog timeout", 7),
    ("silent data corruption", 6),
    ("GPU thermal interface or sensor", 6),
    ("SSD", 3),
    ("power supply", 3),
    ("server chassis", 2),
    ("I/O expansion board", 2),
    ("dependency", 2),
    ("CPU", 2),
    ("system memory", 2),
)
"""The 18 rows of the table: the cause and its interruptions."""


@dataclass(frozen=True, slots=True)
class ExpectedRow:
    """One cause: hosts expected to be struck in a period, beside the standard error."""

    cause: str
    expected_hosts: float
    standard_error: float
    above_noise: bool


def expected_rows(
    hosts: int, days: float, standard_error: float, floor: float = 2.0
) -> Iterator[ExpectedRow]:
    """Say which causes rise above the noise in a period, at the published rates.

    standard_error  of a released count, in hosts
    floor           standard errors below which a value is marked as noise
    """
    for cause, interruptions in LLAMA3_INTERRUPTIONS:
        expected = interruptions * days / LLAMA3_DAYS * hosts / LLAMA3_HOSTS
        above = expected >= floor * standard_error
        yield ExpectedRow(cause, expected, standard_error, above)
