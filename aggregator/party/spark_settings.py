"""What a Leader is told about Spark: the table [spark]."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from transport.settings.config import limited

BATCH_RECORDS: Final = 20_000

_OURS: Final = ("spark.authenticate", "spark.io.encryption.", "spark.network.crypto.", "spark.ui.")
"""Keys of epochs and passwords of Kafka are in what these settings protect."""


@dataclass(frozen=True, slots=True)
class SparkSettings:
    """How the Leader runs Spark.

    python         of an environment with PySpark; None: .venv-spark, as `make spark` makes it
    jars           folder of Spark's connector to Kafka; None: beside that environment's python
    master         where executors run: local[N] on this machine, or a cluster's address
    batch_records  most records that one batch takes
    options        more settings of Spark, by their own names
    """

    python: Path | None = None
    jars: Path | None = None
    master: str = "local[*]"
    batch_records: int = limited(BATCH_RECORDS, low=1, high=10_000_000)
    options: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse what depends on where it is started, or would take protection away."""
        for name in ("python", "jars"):
            path: Path | None = getattr(self, name)
            if path is not None and not path.is_absolute():
                raise ValueError(f"{name}: expected an absolute path, got {path}")
        for name in self.options:
            if not name.startswith("spark.") or name.startswith(_OURS):
                raise ValueError(f"options: expected a setting of Spark that is free, got {name!r}")
