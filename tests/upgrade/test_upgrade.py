"""Agents, Leader and Helper of the first compatible version and of this tree, side by side.

The old tree is run from the repository's own history, in a process of its own.
"""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from aggregator.protocol.directory import PinnedParties
from aggregator.transcripts.transcript import read_transcript
from aggregator.transcripts.transcript_check import verify_transcripts
from privacy.signing import SigningKey
from tests.fault_notes import note, note_verdict
from tests.upgrade.old_tree import ROOT, NoHistory, first_compatible, unpack
from transport.embedded.embedded import EmbeddedLog
from wire.envelope import unwrap
from wire.report import Report
from wire.topics import REPORTS

pytestmark = pytest.mark.release

PARTIES = ("leader", "helper")
HOSTS = 8
OLD_HALF, NEW_HALF = list(range(4)), list(range(4, HOSTS))
EVERYBODY = [*OLD_HALF, *NEW_HALF]
AGENTS_FIRST = pytest.mark.fault_case("upgrade-agents-first")
PARTIES_FIRST = pytest.mark.fault_case("upgrade-parties-first")


class Tree:
    """A player of one tree; every command waits for its answer."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.upgrade.player"],
            cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def __call__(self, do: str, **said: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"do": do, **said}) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, f"{self.root}: expected an answer to {do}, the player ended: see stderr"
        found: dict[str, Any] = json.loads(answer)
        return found

    def close(self) -> None:
        self._process.communicate(timeout=60)


@pytest.fixture(scope="module")
def trees(request: pytest.FixtureRequest) -> Iterator[Mapping[str, Tree]]:
    """The first compatible version and this tree."""
    commit = first_compatible()
    if commit is None:
        note = "CHANGELOG.md names no first compatible version: HEAD stands for it"
        warnings.warn(note, stacklevel=1)
    try:
        old = unpack(commit or "HEAD", request.config.cache.mkdir("old_trees"))
    except NoHistory as reason:
        pytest.skip(str(reason))
    players = {"old": Tree(old), "new": Tree(ROOT)}
    for name, player in players.items():
        assert player("tree")["root"] == str(player.root.resolve()), name
    yield players
    for player in players.values():
        player.close()


@pytest.fixture
def fleet(trees: Mapping[str, Tree], tmp_path: Path) -> str:
    """A fleet whose task, roster, keys and log are of the old tree."""
    trees["old"]("setup", folder=str(tmp_path), hosts=HOSTS)
    return str(tmp_path)


def release(
    trees: Mapping[str, Tree],
    fleet: str,
    window: int,
    leader: str,
    helper: str,
    *,
    store: bool = False,
) -> list[dict[str, Any]]:
    """Close a window with a Leader and a Helper of these trees."""
    told = ask(trees, fleet, window, leader, helper, store=store)
    assert told["suppressed"] == []
    found: list[dict[str, Any]] = told["released"]
    return found


def ask(
    trees: Mapping[str, Tree], fleet: str, window: int, leader: str, helper: str, **more: Any
) -> dict[str, Any]:
    """What came of a window that a Leader closed with a Helper."""
    trees[helper]("helper", folder=fleet)
    told = trees[leader]("leader", folder=fleet, window=window, **more)
    trees[helper]("stop_helper")
    return told


def is_everybody(released: list[dict[str, Any]]) -> bool:
    """Whether all hosts were released: check words, and the sum of 1 to 8 steps."""
    (only,) = released
    return (only["n"], only["vector"][:3]) == (HOSTS, [HOSTS, HOSTS, HOSTS * (HOSTS + 1) // 2])


@pytest.mark.parametrize(
    ("agents", "leader", "helper"),
    [
        pytest.param("new", "old", "old", marks=AGENTS_FIRST),
        pytest.param("old", "old", "new", marks=PARTIES_FIRST),
        pytest.param("old", "new", "old", marks=PARTIES_FIRST),
    ],
)
def test_parties_of_two_versions_release_a_window(
    trees: Mapping[str, Tree], fleet: str, agents: str, leader: str, helper: str
) -> None:
    assert trees[agents]("agents", folder=fleet, hosts=EVERYBODY, window=0)["sealed"] == HOSTS
    assert is_everybody(release(trees, fleet, 0, leader, helper))
    note(f"upgrade@agents {agents}, leader {leader}, helper {helper}")
    check(fleet)


def check(fleet: str) -> None:
    """Each report of the log is in the release, and nothing else; both transcripts agree."""
    folder = Path(fleet)
    told = json.loads((folder / "fleet.json").read_text())
    seeds = (bytes.fromhex(told[name][0]) for name in PARTIES)
    leader_pk, helper_pk = (SigningKey.from_seed_bytes(seed).public_bytes for seed in seeds)
    leader, helper = (read_transcript(folder / f"{name}.sqlite") for name in PARTIES)
    parties = PinnedParties(leader_pk, helper_pk)
    verdict = verify_transcripts(leader, helper, parties)
    assert (verdict.problems, verdict.releases, verdict.unsigned) == ([], 1, 0)
    with EmbeddedLog(folder / "log") as log:
        consumer = log.consumer("check", [REPORTS])
        sealed = frozenset(report_id(record.value) for record in consumer.poll(100, 0.0))
        consumer.close()
    assert leader.links[0].report_ids == helper.links[0].report_ids == sealed
    note_verdict(1, 0, 0)


def report_id(value: bytes) -> bytes:
    return bytes(Report.decode(unwrap(value, 1 << 20)[1]).header.report_id)


def test_new_version_goes_on_with_the_old_ones_files(trees: Mapping[str, Tree], fleet: str) -> None:
    """Ledgers, both parties' states, the log and the store; no window is reported twice."""
    old, new = trees["old"], trees["new"]
    old("agents", folder=fleet, hosts=EVERYBODY, window=0)
    assert is_everybody(release(trees, fleet, 0, "old", "old", store=True))
    again = new("agents", folder=fleet, hosts=NEW_HALF, window=0)
    assert again == {"sealed": 0, "refused": ["window_spent"]}
    old("agents", folder=fleet, hosts=OLD_HALF, window=1)
    assert new("agents", folder=fleet, hosts=NEW_HALF, window=1)["sealed"] == len(NEW_HALF)
    assert is_everybody(release(trees, fleet, 1, "new", "new", store=True))
    second = ask(trees, fleet, 0, "new", "new", store=False, state="other", without=0)
    assert second == {"released": [], "suppressed": ["answered_otherwise"]}
    # And back again: an earlier version goes on with the ledgers that this one wrote.
    back = old("agents", folder=fleet, hosts=NEW_HALF, window=2)
    assert back["sealed"] == len(NEW_HALF)
    again = new("agents", folder=fleet, hosts=NEW_HALF, window=2)
    assert again == {"sealed": 0, "refused": ["window_spent"]}
    read = new("read", folder=fleet)
    assert read["windows"] == 2
    assert read["cells"] > 0


def test_agents_of_before_refuse_a_task_of_a_new_catalogue_by_name(
    trees: Mapping[str, Tree], tmp_path: Path
) -> None:
    """They lose no budget by it, and serve it from their own upgrade on."""
    trees["new"]("setup", folder=str(tmp_path), hosts=HOSTS, section="host_cpu")
    trees["new"]("sign_roster", folder=str(tmp_path), version=1, window=0)  # as they read it
    told = trees["old"]("agents", folder=str(tmp_path), hosts=OLD_HALF, window=0)
    assert told == {"sealed": 0, "refused": ["catalogue", "task_unknown"]}
    told = trees["new"]("agents", folder=str(tmp_path), hosts=EVERYBODY, window=0)
    assert told == {"sealed": HOSTS, "refused": []}


def test_new_version_reads_the_old_ones_catalogue(trees: Mapping[str, Tree]) -> None:
    """Its meaning is bound to its hash: the same file has the same one in every version."""
    old, new = trees["old"], trees["new"]
    file = str(old.root / "wire" / "catalogue.toml")
    assert new("catalogue", file=file)["catalogue"] == old("tree")["catalogue"]


def test_roster_of_before_is_read_until_one_names_its_fleet(
    trees: Mapping[str, Tree], fleet: str
) -> None:
    """The first that names it binds a host: none without a name is taken any more."""
    old, new = trees["old"], trees["new"]
    old("agents", folder=fleet, hosts=EVERYBODY, window=0)
    assert is_everybody(release(trees, fleet, 0, "new", "new"))
    new("sign_roster", folder=fleet, version=2, window=1, name="fleet-1")
    assert new("agents", folder=fleet, hosts=EVERYBODY, window=1)["sealed"] == HOSTS
    assert is_everybody(release(trees, fleet, 1, "new", "new"))
    new("sign_roster", folder=fleet, version=3, window=2)
    told = new("agents", folder=fleet, hosts=EVERYBODY, window=2)
    assert "roster_fleet" in told["refused"]


def test_old_agents_refuse_a_roster_that_names_its_fleet_and_spend_nothing(
    trees: Mapping[str, Tree], fleet: str
) -> None:
    """Parties first: the Leader names the fleet before its hosts can read that."""
    old, new = trees["old"], trees["new"]
    new("sign_roster", folder=fleet, version=1, window=0, name="fleet-1")
    told = old("agents", folder=fleet, hosts=EVERYBODY, window=0)
    assert told == {"sealed": 0, "refused": ["field", "no_roster"]}
    assert new("agents", folder=fleet, hosts=EVERYBODY, window=0)["sealed"] == HOSTS
    assert is_everybody(release(trees, fleet, 0, "new", "new"))
