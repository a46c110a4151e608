"""What one process of a simulated fleet is told, as the file that its parent writes for it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from transport.kafka_settings import KafkaSettings
from transport.opening import TransportSettings, TransportTable


@dataclass(frozen=True, slots=True)
class SliceConfig:
    """What one process is told.

    state_dir       its ledger, 0700; truth_file gets one line of JSON per window
    opendp_hosts    of its hosts draw noise by opendp
    log_dir         the embedded log, or None with kafka: a broker's host:port
    tasks           how many tasks it waits for before it may end
    """

    name: str
    first_host: int
    hosts: int
    gpus_per_host: int
    dropout: float
    late: float
    seed: int | None
    opendp_hosts: int
    state_dir: str
    log_dir: str | None
    log_group: str | None
    kafka: str | None
    truth_file: str
    leader_pk: str
    helper_pk: str
    n_min_at_least: int
    tasks: int

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read the file that `write` wrote."""
        return cls(**json.loads(path.read_text()))

    def write(self, path: Path) -> None:
        """Write it as JSON; it holds no secret."""
        path.write_text(json.dumps(asdict(self)))

    @property
    def transport(self) -> TransportSettings:
        """Where the log is."""
        folder = Path(self.log_dir) if self.log_dir else None
        kafka = KafkaSettings((self.kafka,)) if self.kafka else None
        return TransportTable(folder, self.log_group, kafka).settings
