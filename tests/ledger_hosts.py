"""Hosts with the real participant and a real ledger, for parties that are played elsewhere."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from unittest import mock

import numpy as np
from numpy.typing import NDArray

from aggregator.enrolment.tasks import TaskPlan, build_task
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
from privacy.noise_table import SeededSampler
from tests import protocol_kit
from tests.agent_world import MemoryRuntime, new_ledger
from tests.agent_world import World as AgentWorld
from tests.fault_oracle import Evidence, SealedReport, Verdict, judge
from tests.fault_steps import EncodedSteps
from tests.protocol_kit import SERIES, T0, WINDOW_S
from wire.catalogue import Catalogue
from wire.envelope import unwrap
from wire.fields import TaskId, task_id
from wire.report import Report
from wire.roster import Roster
from wire.topics import EPOCHS

WEIGHT = 600_000


class LastNoise:
    seeded = True

    def __init__(self, seed: int) -> None:
        self._sampler = SeededSampler(seed)
        self.last = np.zeros((0, 0), dtype=np.int64)

    def sample(self, hosts: int, sigma_1024: NDArray[np.int64]) -> NDArray[np.int64]:
        self.last = self._sampler.sample(hosts, sigma_1024)
        return self.last.copy()


class LedgerHosts:
    """Hosts of one roster, with one participant and one ledger.

    world       the fleet as Leader and Helper are given it
    """

    def __init__(self, folder: Path, count: int = 9) -> None:
        folder.mkdir()
        self._agents = AgentWorld(count)
        leader, helper = self._agents.leader, self._agents.helper
        self._catalogue = Catalogue.load()
        plan = TaskPlan(
            series=SERIES, domain="demo", window_s=WINDOW_S, first_window=T0,
            last_window=T0 + 1000 * WINDOW_S, lateness_s=30, retention_s=6 * 3600,
            weights={"kernel_mix": WEIGHT}, gpus_per_host=8, n_max=count, n_min=count - 1, t=1,
            largest_operator=1, leader_pk=leader.pk, helper_pk=helper.pk, expiry=T0 + 10**7,
        )  # fmt: skip
        self.task = build_task(self._catalogue, plan)
        signed = self._agents.sign_task(self.task)
        self._task_id = TaskId(task_id(signed[:-128]))
        roster = self._agents.roster({SERIES: WEIGHT}, cohort=0)
        self.world = protocol_kit.World(
            leader.signing, helper.signing, leader.hpke, helper.hpke,
            self.task, self._task_id, signed, Roster(1, 0, (), ()), roster, [],
        )  # fmt: skip
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
