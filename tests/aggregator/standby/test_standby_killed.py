"""kill -9 of the machine that leads: the other goes on from the database, bit for bit."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from aggregator.party.config import StandbySettings
from aggregator.standby.leadership import tables_to_read
from aggregator.transcripts.transcript import (
    export_transcript,
    read_leader_tables,
    read_transcript,
)
from aggregator.transcripts.transcript_check import verify_transcripts
from tests.fault_cases import STEPS
from tests.fault_oracle import judge
from tests.ledger_hosts import LedgerHosts
from tests.postgresql_kit import PostgresqlServer
from tests.protocol_kit import T0, WINDOW_S
from tests.standby_kit import LEASE_S, MACHINES, LeaderDatabase, StandbyProcessFleet
from tests.wait_kit import until

pytestmark = [pytest.mark.slow, pytest.mark.postgresql]


@pytest.mark.timeout(300)
@pytest.mark.release
@pytest.mark.fault_case("leading-machine-killed")
def test_other_machine_goes_on_where_the_killed_one_fell(
    postgresql_server: PostgresqlServer, tmp_path: Path
) -> None:
    """One window per step, the kill armed before its reports, each of which comes twice."""
    database = LeaderDatabase(postgresql_server)
    hosts = LedgerHosts(tmp_path / "hosts")
    fleet = StandbyProcessFleet(hosts.world, tmp_path, database)
    windows = len(STEPS["standby"])
    try:
        until(lambda: database.psql("SELECT fence FROM leadership") == "1")
        fleet.follow()
        for number, step in enumerate(STEPS["standby"]):
            play_window(fleet, hosts, number, step)
        transcript = tmp_path / "leader-transcript.json"
        # A machine that fell as the last window was looked at is started again here.
        until(
            lambda: fleet.killed() and fleet.passes() and countersigned(fleet, transcript, windows)
        )
    finally:
        codes = fleet.stop()
    assert codes == [0] * 3
    check(fleet, hosts, transcript, windows)
    hosts.close()
    fences = int(database.psql("SELECT fence FROM leadership"))
    assert fences == 1 + windows  # each machine that fell was followed once


def play_window(fleet: StandbyProcessFleet, hosts: LedgerHosts, number: int, step: str) -> None:
    window = T0 + number * WINDOW_S
    fleet.clock.set(window + 1)
    fleet.kill_at(f"leader {step}")
    epochs, reports = hosts.report(window)
    fleet.publish(epochs, [*reports, *reports])
    fleet.clock.set(window + WINDOW_S + 1)
    until(lambda: fleet.killed() and fleet.passes() and fleet.released(number + 1))


def countersigned(fleet: StandbyProcessFleet, transcript: Path, wanted: int) -> bool:
    tables = tables_to_read(StandbySettings(fleet.database.settings, LEASE_S))
    kept = read_leader_tables(tables)
    export_transcript(
        kept, transcript, [one for link in kept.links for one in link.report_ids or ()]
    )
    tables.close()
    both = [read_transcript(path) for path in (transcript, fleet.folder / "helper.sqlite")]
    verdict = verify_transcripts(both[0], both[1], fleet.world.parties)
    return verdict.releases == wanted and verdict.unsigned == 0


def check(fleet: StandbyProcessFleet, hosts: LedgerHosts, transcript: Path, windows: int) -> None:
    lines = [json.loads(line) for line in (fleet.folder / "store.jsonl").read_text().splitlines()]
    stored = [(line["window"], line["vector"]) for line in lines]
    said = [json.loads((fleet.folder / f"{name}-status.json").read_text()) for name in MACHINES]
    refused = next(each["rejected"] for each in said if not each["standby"])
    evidence = hosts.evidence(fleet.folder, stored, refused)
    verdict = judge(replace(evidence, leader=transcript))
    assert verdict.problems == []
    assert (verdict.windows, verdict.released) == (windows, len(hosts.sealed))
    shares: dict[int, set[str]] = {}
    for line in fleet.lines("shares.jsonl"):
        assert isinstance(line, list)
        shares.setdefault(line[0], set()).add(line[1])
    assert all(len(seen) == 1 for seen in shares.values())
