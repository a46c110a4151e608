"""What one process of a simulated fleet is told, as the file that its parent writes for it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Self

from transport.kafka.kafka_frame import KafkaSettings
from transport.opening import TransportSettings, TransportTable

from .engine.blocks import Span, spans
from .scenario import Scenario, load


def parts_of(hosts: int, parts: int) -> list[Span]:
    """Divide a fleet among processes, one block each; into fewer where there are fewer hosts."""
    return [block for part in spans(hosts, -(-hosts // parts), parts) for block in part]


@dataclass(frozen=True, slots=True)
class SliceConfig:
    """What one process is told.

    scenario        its file; hosts, seed and dropout stand in place of the file's
    part            which of the `parts` of the fleet's hosts it plays
    repeats         noise and rounding come from the seed too, not from the operating system
    opendp_hosts    of its hosts draw noise by opendp
    state_dir       its ledger, 0700; truth_file gets one line of JSON per window
    log_dir         the embedded log, or None with kafka: a broker's host:port
    tasks           how many tasks it waits for before it may end
    tokens_file     a line with a join token for each of its hosts, 0600
    """

    name: str
    scenario: str
    hosts: int
    seed: int
    dropout: float
    part: int
    parts: int
    repeats: bool
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
    tokens_file: str

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read the file that `write` wrote."""
        return cls(**json.loads(path.read_text(encoding="utf-8")))

    def write(self, path: Path) -> None:
        """Write it as JSON; it holds no secret."""
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")

    @property
    def played(self) -> Scenario:
        """The scenario of the whole fleet. Raises ScenarioError."""
        scenario = load(Path(self.scenario)).with_(hosts=self.hosts, seed=self.seed)
        return scenario.with_(dropout=replace(scenario.dropout, share=self.dropout))

    @property
    def span(self) -> Span:
        """Its own hosts."""
        return parts_of(self.hosts, self.parts)[self.part]

    @property
    def transport(self) -> TransportSettings:
        """Where the log is."""
        folder = Path(self.log_dir) if self.log_dir else None
        kafka = KafkaSettings((self.kafka,)) if self.kafka else None
        return TransportTable(folder, self.log_group, kafka).settings
