"""Hosts with the real participant and a real ledger, for parties that are played elsewhere."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from unittest import mock

import numpy as np

from edge_agent.ledger.ledger_db import read_view
from edge_agent.ledger.ledger_records import SealedRecord
from edge_agent.protocol import participant
from edge_agent.protocol.protocol_events import (
    EpochDue,
    KeysAnnounced,
    RosterReceived,
    TaskReceived,
    WindowClosed,
)
from edge_agent.protocol.task_check import Bounds
from tests import protocol_kit
from tests.agent_world import LastNoise, MemoryRuntime, new_ledger
from tests.agent_world import World as AgentWorld
from tests.fault_oracle import EncodedSteps, Evidence, SealedReport, Verdict, judge
from tests.protocol_kit import SERIES, T0, WINDOW_S
from wire.catalogue import Catalogue
from wire.envelope import unwrap
from wire.fields import TaskId, task_id
from wire.report import Report
from wire.topics import EPOCHS

WEIGHT = 600_000


class LedgerHosts:
    """Hosts of one roster, with one participant and one ledger.

    world       the fleet as Leader and Helper are given it
    """

    def __init__(self, folder: Path, count: int = 9) -> None:
        folder.mkdir()
        self._agents = AgentWorld(count)
        self._catalogue = Catalogue.load()
        self.task = self._agents.catalogue_task(
            {"kernel_mix": WEIGHT}, series=SERIES, first=T0, n_max=count, n_min=count - 1, t=1,
            largest_operator=1,
        )  # fmt: skip
        signed = self._agents.sign_task(self.task)
        self._task_id = TaskId(task_id(signed[:-128]))
        roster = self._agents.roster({SERIES: WEIGHT}, cohort=0, crowd=count)
        self.world = protocol_kit.world_of(self._agents, self.task, signed, roster)
        self.sealed: list[SealedReport] = []
        self._ledger = new_ledger(folder, self._agents, T0)
        self._ledger_file = folder / "ledger.sqlite"
        self._lives = 0
        self.restart(T0)

    def restart(self, now_s: int) -> None:
        """Begin again with what the ledger holds: keys in memory are lost, and epochs with them."""
        self._lives += 1
        self._noise = LastNoise(self._lives)
        rules = self._agents.rules(bounds=Bounds(n_min_at_least=1), catalogue=self._catalogue)
        made = self._agents.participant(
            self._ledger.view(self._agents.host_ids),
            sampler=self._noise, rules=rules, seed=self._lives,
        )  # fmt: skip
        self._runtime = MemoryRuntime(made, self._ledger)
        self._runtime.tell(TaskReceived(self.world.task_bytes, now_s))
        self._runtime.tell(RosterReceived(self.world.roster_bytes, now_s))
        self._runtime.tell(KeysAnnounced(self._agents.keys(T0), now_s))

    def report(self, window: int) -> tuple[list[bytes], list[bytes]]:
        """Close a window of every host; give the epochs that were opened, and the reports."""
        hosts, encoded = self._agents.hosts, EncodedSteps()
        self._runtime.tell(EpochDue(window))
        rows = np.zeros((hosts, self.task.d - 2), dtype=np.int64)
        rows[:, 0] = np.arange(1, hosts + 1) * self.task.sections[0].q
        closed = WindowClosed(
            self._task_id, window, rows, np.ones(hosts, dtype=np.bool_), window + WINDOW_S
        )
        with mock.patch.object(participant, "encode_rows", encoded.encode):
            self._runtime.tell(closed)
        sent, self._runtime.published = self._runtime.published, []
        reports = _cores([record for record in sent if record.topic != EPOCHS])
        assert len(reports) == hosts, self._runtime.refused
        for core, true, noise in zip(reports, encoded.last, self._noise.last, strict=True):
            report = Report.decode(core)
            self.sealed.append(
                SealedReport(
                    bytes(report.header.report_id), bytes(report.host_id), window, true, noise
                )
            )
        return _cores([record for record in sent if record.topic == EPOCHS]), reports

    def judge(self, folder: Path) -> Verdict:
        """Hold what the parties' processes left in a folder against what was sealed."""
        lines = [json.loads(line) for line in (folder / "store.jsonl").read_text().splitlines()]
        status = json.loads((folder / "leader-status.json").read_text())
        stored = [(line["window"], line["vector"]) for line in lines]
        return judge(self.evidence(folder, stored, status["rejected"]))

    def evidence(
        self,
        folder: Path,
        stored: Iterable[tuple[int, Iterable[int]]],
        refused: Mapping[str, int],
    ) -> Evidence:
        """What a judge asks for; both parties' states lie in the folder."""
        spent = {
            (bytes(host.host_id), entry.start)
            for host in read_view(self._ledger_file).hosts
            for entry in host.entries
        }
        return Evidence(
            self.sealed,
            frozenset(spent),
            [(window, tuple(map(int, vector))) for window, vector in stored],
            folder / "leader.sqlite",
            folder / "helper.sqlite",
            self.world.parties,
            refused,
        )

    def close(self) -> None:
        self._ledger.close()


def _cores(records: Sequence[SealedRecord]) -> list[bytes]:
    return [unwrap(record.value, 1 << 22)[1] for record in records]
