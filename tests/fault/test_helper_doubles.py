"""Two Helpers on one state, and one put back from a backup: nothing is answered twice."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import cast

import pytest

from aggregator.protocol.interfaces import HelperPort
from tests.fault.deaf_leader import DeafLeader
from tests.fault_fleet import STEP_S, FaultFleet
from tests.outage_kit import HOSTS


@pytest.fixture
def deaf() -> list[DeafLeader]:
    """The one that stands before the fleet's Helper."""
    return []


@pytest.fixture
def fleet(tmp_path: Path, deaf: list[DeafLeader]) -> Iterator[FaultFleet]:
    def deafen(port: HelperPort) -> HelperPort:
        deaf.append(DeafLeader(port))
        return cast("HelperPort", deaf[0])

    made = FaultFleet(tmp_path, bend=deafen)
    yield made
    made.close()


@pytest.mark.fault_case("reply-lost")
def test_answers_that_were_lost_are_given_again(fleet: FaultFleet, deaf: list[DeafLeader]) -> None:
    """The same bytes; a share first, then the signatures of the releases."""
    deaf[0].lost = True
    fleet.run_to(fleet.first + 150, step_s=STEP_S)
    assert not fleet.written
    assert fleet.helper.batches_answered > 2
    deaf[0].lost = False
    verdict = fleet.finish(after_s=200)
    assert (verdict.windows, verdict.released, verdict.lost) == (3, 3 * HOSTS, {})


@pytest.mark.fault_case("two-helpers")
def test_second_helper_by_mistake_ends_the_first(fleet: FaultFleet) -> None:
    fleet.run_to(fleet.first + 100, step_s=STEP_S)
    older = fleet.helper
    fleet.start_helper()
    newer, fleet.helper = fleet.helper, older
    fleet.run_to(fleet.first + 150, step_s=STEP_S)
    assert len(fleet.written) == 1, "the older one answers nothing more"
    fleet.helper = newer
    verdict = fleet.finish(after_s=200)
    assert (verdict.windows, verdict.released, verdict.lost) == (3, 3 * HOSTS, {})


@pytest.mark.fault_case("helper-restored")
def test_helper_from_a_backup_answers_no_window_of_before(
    fleet: FaultFleet, deaf: list[DeafLeader], tmp_path: Path
) -> None:
    """It had answered the second window, and the backup does not know: that window is lost."""
    fleet.run_to(fleet.first + 100, step_s=STEP_S)
    with (
        closing(sqlite3.connect(tmp_path / "helper.sqlite")) as state,
        closing(sqlite3.connect(tmp_path / "backup.sqlite")) as backup,
    ):
        state.backup(backup)
    deaf[0].lost = True
    fleet.run_to(fleet.first + 130, step_s=STEP_S)
    assert fleet.helper.batches_answered > 1
    fleet.close_helper()
    for name in ("helper.sqlite-wal", "helper.sqlite-shm"):
        (tmp_path / name).unlink(missing_ok=True)
    (tmp_path / "backup.sqlite").replace(tmp_path / "helper.sqlite")
    deaf[0].lost = False
    fleet.start_helper()
    verdict = fleet.finish(after_s=200)
    assert (verdict.windows, verdict.released) == (2, 2 * HOSTS)
    assert verdict.lost == {"closed_before_restore": HOSTS}
