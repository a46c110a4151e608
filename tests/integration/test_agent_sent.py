"""`agent sent`: what left, which release it entered, and transcripts that say otherwise."""

from __future__ import annotations

import dataclasses
import json
import shutil
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aggregator.protocol.directory import PinnedParties
from aggregator.transcripts.report_check import OwnReport, Verdict, check_report
from aggregator.transcripts.transcript import read_transcript
from pointillist.cli import main
from privacy.masks import derive_box_key, open_box, seal_box
from tests.agent_world import T0, open_report
from tests.sent_kit import USER_MS, WINDOW_S, SentFleet, sent_fleet
from transport.embedded.embedded import EmbeddedLog
from wire import labels
from wire.batch import Batch, SignedRelease
from wire.envelope import Kind, unwrap, wrap
from wire.epoch import Epoch
from wire.report import Report
from wire.topics import EPOCHS, RELEASES, release_key

pytestmark = pytest.mark.slow

RELEASED, SPOILT, LOST, FEW, LAST = range(5)
"""Windows: released; check words spoilt on the way; lost on the way; too few hosts; released."""


@dataclasses.dataclass(frozen=True)
class Played:
    """A fleet that has stopped, the live host's reports by window, and what its keys were."""

    fleet: SentFleet
    reports: list[Report]
    secrets: list[bytes]

    def report_id(self, window: int) -> str:
        return self.reports[window].header.report_id.hex()


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Played:
    fleet = sent_fleet(tmp_path_factory.mktemp("sent"))
    fleet.start()
    reports = [
        fleet.window(RELEASED),
        fleet.window(SPOILT, alter=lambda report: _spoilt(fleet, report)),
        fleet.window(LOST, alter=lambda _report: None),
        fleet.window(FEW, others=10),
        fleet.window(LAST),
    ]
    fleet.aggregators.tick(T0 + (LAST + 1) * WINDOW_S + 31)
    secrets = _secrets(fleet, reports)
    fleet.stop()
    return Played(fleet, reports, secrets)


def _epoch_of(fleet: SentFleet, report: Report) -> Epoch:
    cores = [unwrap(record.value, 1 << 16)[1] for record in fleet.made.records(EPOCHS)]
    return {epoch.header.epoch_id: epoch for epoch in map(Epoch.decode, cores)}[report.epoch_id]


def _spoilt(fleet: SentFleet, report: Report) -> Report:
    """Do what the Leader alone could: other check words in a box that opens."""
    epoch = _epoch_of(fleet, report)
    k_l = fleet.world.leader.hpke.open(epoch.seal_l, labels.SEAL_L + epoch.header.encode())
    k_box = derive_box_key(k_l, epoch.hash(), report.task_id)
    words = bytearray(open_box(k_box, report.header.report_id, report.aad, report.box))
    words[0] ^= 1
    box = seal_box(k_box, report.header.report_id, report.aad, bytes(words))
    return dataclasses.replace(report, box=box)


def _secrets(fleet: SentFleet, reports: list[Report]) -> list[bytes]:
    """Seed, epoch keys and mask key of the live host; masked and noised words of its reports."""
    assert fleet.runtime is not None
    seed = fleet.world.signing_keys[0].seed_bytes()
    found = [seed]
    for row in fleet.runtime._effects._participant._epochs.in_force.values():
        for epoch in row:
            if epoch is not None:
                keys = epoch.keys(fleet.task_id)
                found += [epoch.k_h, epoch.k_l, keys.k_mask, keys.k_id, keys.k_box]
    for report in reports:
        noised = open_report(fleet.world, _epoch_of(fleet, report), report)
        found += [report.box[:16], noised[2:6].astype("<i8").tobytes()]
    return found


Sent = Callable[..., tuple[int, str]]


@pytest.fixture
def sent(
    played: Played, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Sent:
    # The test's own user keeps its files: dropping privileges has tests of its own.
    monkeypatch.setattr("pointillist.cli.agent_file.become_agent", lambda _config: None)
    monkeypatch.setenv("COLUMNS", "80")

    def call(*arguments: str | Path) -> tuple[int, str]:
        config = [] if "--config" in arguments else ["--config", played.fleet.config_file]
        command = ["agent", "sent", *config, *arguments]
        monkeypatch.setattr(sys, "argv", ["pointillist", *map(str, command)])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        code = ended.value.code
        return (code if isinstance(code, int) else 0), out or err

    return call


def transcripts(leader: Path, helper: Path) -> list[str | Path]:
    return ["--leader-transcript", leader, "--helper-transcript", helper]


@pytest.fixture
def parties(played: Played) -> list[str | Path]:
    return transcripts(played.fleet.folder, played.fleet.folder)


def test_sent_names_the_release_of_each_report(
    sent: Sent, played: Played, parties: list[str | Path]
) -> None:
    code, out = sent("--since", "2025-01-01", "--json", *parties)
    assert code == 0
    rows = json.loads(out)["reports"]
    assert [row["report_id"] for row in rows] == [played.report_id(n) for n in range(5)]
    told = [(row["release"]["verdict"], row["release"]["why"]) for row in rows]
    assert told[RELEASED][0] == told[LAST][0] == "released"
    assert told[SPOILT] == (
        "not in the release",
        "the Helper cleared its bit; reasons and hosts in this batch: check_words of 1",
    )
    assert told[LOST][0] == "not in the release"
    assert "late, was refused, or was left out" in told[LOST][1]
    assert told[FEW] == ("suppressed", "n_min")
    assert {row["state"] for row in rows} == {"sent"}
    chain = sqlite3.connect(played.fleet.leader)
    (entry,) = chain.execute("SELECT entry FROM windows WHERE window = ?", (T0,)).fetchone()
    chain.close()
    assert rows[RELEASED]["release"]["release"] == SignedRelease.decode(entry).release.hash().hex()


def test_sent_shows_what_was_put_in_and_its_noise(sent: Sent, played: Played) -> None:
    code, out = sent("--report", played.report_id(LAST)[:8], "--json")
    assert code == 0
    body = json.loads(out)
    assert body["inputs_kept"]
    assert body["report_bytes"] == len(played.reports[LAST].encode())
    assert body["leader_pk"] == played.fleet.world.leader.pk.hex()
    assert body["log"] == f"embedded log {played.fleet.folder}/log"
    section = body["sections"][1]
    (cell,) = section["cells"]
    spec = played.fleet.made.task.sections[1]
    assert (section["name"], cell["cell"]) == ("host_cpu", "user")
    assert cell["value"] == pytest.approx(USER_MS * 100 / 1e6)
    assert cell["noise"] == pytest.approx(spec.sigma_1024 / 1024 * spec.q * 100 / 1e6)
    assert section["release_noise"] == pytest.approx(4 * section["noise"])
    share = 600_000 / 1e6 / 100 * 5
    assert body["budget"]["share"] == pytest.approx(share, abs=1e-6)
    assert 0 < body["budget"]["epsilon"] < body["budget"]["epsilon_most"] == 2


def test_sent_says_what_nothing_measured(sent: Sent, played: Played) -> None:
    """No source of kernels runs on this host: its GPU time is unmeasured, and said to be."""
    report = played.report_id(LAST)[:8]
    _, out = sent("--report", report, "--json")
    why = "reported as unmeasured: sources.probes and sources.gpu_time off"
    told = {section["name"]: section["unmeasured"] for section in json.loads(out)["sections"]}
    assert told == {"kernel_mix": why, "host_cpu": None}
    _, out = sent("--report", report)
    assert f"Not measured, {why}: kernel_mix." in " ".join(out.split())


def test_sent_without_a_local_history_says_that_inputs_are_gone(
    sent: Sent, played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    from edge_agent.local.history_tables import HistoryUnavailable

    def gone(_path: Path) -> None:
        raise HistoryUnavailable("none")

    monkeypatch.setattr("edge_agent.local.history_tables.open_readonly", gone)
    _, out = sent("--window", str(T0), "--json")
    assert {section["cells"] is None for section in json.loads(out)["sections"]} == {True}
    _, out = sent("--window", str(T0))
    assert "no longer kept" in out


@pytest.mark.parametrize("asked", ["table", "full", "check"])
def test_sent_fits_a_terminal_and_shows_no_secret(
    asked: str, sent: Sent, played: Played, parties: list[str | Path]
) -> None:
    report = played.report_id(RELEASED)
    arguments: dict[str, list[str | Path]] = {
        "table": ["--since", "2025-01-01", *parties],
        "full": ["--report", report, *parties],
        "check": ["--check", report, *parties],
    }
    code, text = sent(*arguments[asked])
    _, document = sent(*arguments[asked], "--json")
    assert code == 0
    assert max(map(len, text.splitlines())) <= 80
    for secret in played.secrets:
        assert secret.hex() not in text + document


def test_stored_rows_hold_no_secret(played: Played) -> None:
    ledger = sqlite3.connect(played.fleet.made.config.ledger_file)
    rows = ledger.execute("SELECT * FROM left_reports").fetchall()
    ledger.close()
    assert len(rows) == 5
    kept = b"".join(v if isinstance(v, bytes) else str(v).encode() for row in rows for v in row)
    for secret in played.secrets:
        assert secret not in kept
        assert secret.hex().encode() not in kept


# A check with exported transcripts --------------------------------------------------------------


@pytest.fixture(scope="module")
def exported(played: Played, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both exports with the evidence of the first window, as each party's operator makes them."""
    folder = tmp_path_factory.mktemp("exports")
    for party in ("leader", "helper"):
        state = played.fleet.folder / f"{party}.sqlite"
        with pytest.MonkeyPatch.context() as patch:
            out = str(folder / f"{party}.json")
            command = ["leader", "transcript", "export", str(state), out, "--window", str(T0)]
            command += ["--report", played.report_id(LAST)]
            patch.setattr(sys, "argv", ["pointillist", *command])
            with pytest.raises(SystemExit) as ended:
                main()
        assert not ended.value.code
    return folder


def altered(
    exported: Path, folder: Path, party: str, change: Callable[[dict[str, Any]], object]
) -> list[str | Path]:
    """Copy both exports and change the first link of one."""
    shutil.copytree(exported, folder, dirs_exist_ok=True)
    path = folder / f"{party}.json"
    body = json.loads(path.read_text())
    change(body["links"][0])
    path.write_text(json.dumps(body))
    return transcripts(folder, folder)


def test_check_holds_with_exports(sent: Sent, played: Played, exported: Path) -> None:
    code, out = sent("--check", played.report_id(RELEASED), *transcripts(exported, exported))
    assert code == 0
    assert "The report is in release" in out
    assert "DOES NOT HOLD" not in out


def test_check_without_evidence_proves_nothing(sent: Sent, played: Played, exported: Path) -> None:
    """What a transcript says of a report is nobody's signature."""
    code, out = sent("--check", played.report_id(LAST), *transcripts(exported, exported))
    assert code == 1
    assert "says that the report is in, but has neither batch nor share" in " ".join(out.split())


def flip(text: str, at: int) -> str:
    at %= len(text)
    return text[:at] + f"{int(text[at], 16) ^ 1:x}" + text[at + 1 :]


def _other_report(link: dict[str, Any]) -> None:
    batch = bytearray.fromhex(link["evidence"]["batch"])
    decoded = Batch.decode(bytes(batch))
    for place in range(decoded.n):
        batch[72 + 72 * place + 32] ^= 1  # the first byte of each report id
    link["evidence"]["batch"] = batch.hex()


def _other_bit(link: dict[str, Any]) -> None:
    share = bytearray.fromhex(link["evidence"]["share"])
    share[51] -= 8
    share[52] = 0
    link["evidence"]["share"] = share.hex()


@pytest.mark.parametrize("party", ["leader", "helper"])
@pytest.mark.parametrize(
    ("change", "told"),
    [
        (_other_bit, "the Helper's signature over the {}'s share does not hold"),
        (_other_report, "the {}'s batch is not the one that the release names"),
        (
            lambda link: link["evidence"].update(share=flip(link["evidence"]["share"], -1)),
            "the Helper's signature over the {}'s share does not hold",
        ),
        (
            lambda link: link.update(release=flip(link["release"], 2 * 150)),
            "({}): the Leader's signature does not hold",
        ),
        (
            lambda link: link.update(release=flip(link["release"], 2 * 250)),
            "({}): the Helper's signature does not hold",
        ),
        (
            lambda link: link.update(release=flip(link["release"], 2 * 120)),
            "the two parties signed different releases",
        ),
        (
            lambda link: link["evidence"].update(batch=link["evidence"]["batch"][:-2]),
            "the {}'s batch or share cannot be read",
        ),
    ],
)
def test_forged_transcript_is_refused_with_what_is_wrong(
    change: Callable[[dict[str, Any]], object],
    told: str,
    party: str,
    sent: Sent,
    played: Played,
    exported: Path,
    tmp_path: Path,
) -> None:
    files = altered(exported, tmp_path, party, change)
    code, out = sent("--check", played.report_id(RELEASED), *files, "--json")
    assert code == 1
    failed = json.loads(out)["release"]["failed"]
    name = party if told.startswith("(") else party.capitalize()
    assert any(told.format(name) in problem for problem in failed), failed


def test_check_compares_with_the_logs_own_copy(
    sent: Sent, played: Played, parties: list[str | Path], tmp_path: Path
) -> None:
    """A Leader that shows this host another chain than everybody else is told by the log."""

    def publish(entry: bytes) -> None:
        key = release_key("minute", played.reports[0].header.cohort)
        with EmbeddedLog(tmp_path / "log") as log:
            log.create_topic(RELEASES, 1)
            producer = log.producer()
            producer.send(RELEASES, key, wrap(Kind.RELEASE, entry))
            producer.close()

    config = tmp_path / "agent.toml"
    text = played.fleet.config_file.read_text()
    config.write_text(text.replace(f"{played.fleet.folder}/log", f"{tmp_path}/log"))
    leader = read_transcript(played.fleet.leader)
    asked = ["--config", config, "--check", played.report_id(RELEASED), *parties]
    EmbeddedLog(tmp_path / "log").close()
    assert "the log's own copy of the chain: " in " ".join(sent(*asked)[1].split())
    publish(leader.links[0].release.encode())
    code, out = sent(*asked)
    assert code == 0
    assert "the log: its topic of releases has this release" in " ".join(out.split())
    other = dataclasses.replace(leader.links[1].release.release, vector_hash=bytes(32))
    key = played.fleet.world.leader.signing
    for signature in (bytes(64), key.sign(other.unsigned())):
        publish(SignedRelease(other, signature).encode())
        code, out = sent(*asked)
        assert code == int(signature != bytes(64))  # what anybody wrote there tells nothing
    assert "the Leader told two stories" in " ".join(out.split())


@pytest.mark.parametrize("name", ["epoch_id", "report_id", "tag_h"])
def test_another_report_of_this_host_is_not_this_one(name: str, played: Played) -> None:
    """Both parties may sign a batch with a report that this host did not seal last."""
    sealed, world = played.reports[RELEASED], played.fleet.world
    own = OwnReport(
        sealed.host_id, sealed.epoch_id, sealed.header.report_id, sealed.tag_h, sealed.task_id,
        "minute", sealed.header.cohort, T0, sealed.header.d,
    )  # fmt: skip
    leader, helper = (
        read_transcript(path, evidence_of=lambda *place: place[2] == T0)
        for path in (played.fleet.leader, played.fleet.helper)
    )
    parties = PinnedParties(world.leader.pk, world.helper.pk)
    assert check_report(own, leader, helper, parties).verdict is Verdict.RELEASED
    changes: dict[str, Any] = {name: bytes(16)}
    other = dataclasses.replace(own, **changes)
    found = check_report(other, leader, helper, parties)
    assert found.verdict is Verdict.REFUSED
    assert f"names this host with another {name}" in found.failed[0]


def test_swapped_transcripts_are_named(sent: Sent, played: Played, exported: Path) -> None:
    files = transcripts(exported / "helper.json", exported / "leader.json")
    code, out = sent("--check", played.report_id(RELEASED), *files)
    assert code == 1
    assert "expected the transcript of the Leader" in " ".join(out.split())


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[" * 100_000,
        '{"format": "pointillist-transcript-1", "party": "leader", "links": 7}',
        '{"format": "pointillist-transcript-1", "party": "leader", "links": [{"report_ids": []}]}',
        '{"format": "pointillist-transcript-1", "party": "leader", "links": [], "suppressed": [1]}',
        '{"format": "pointillist-transcript-1", "links": [], "suppressed": [["", 1e999, 1, ""]]}',
        "SQLite format 3\0 and nothing that follows",
        "\x00\xff",
    ],
)
def test_file_that_is_no_transcript_is_wrong_usage(
    content: str, sent: Sent, played: Played, exported: Path, tmp_path: Path
) -> None:
    path = tmp_path / "leader.json"
    path.write_text(content, encoding="latin-1")
    code, out = sent(
        "--check", played.report_id(RELEASED), *transcripts(path, exported / "helper.json")
    )
    assert code == 2
    assert "expected" in out


@pytest.mark.parametrize("value", ["text", None, b"short"])
@pytest.mark.parametrize("column", ["entry", "batch", "share"])
def test_state_with_odd_values_is_wrong_usage(
    column: str, value: object, sent: Sent, played: Played, tmp_path: Path
) -> None:
    """Another party's state is a stranger's file."""
    path = tmp_path / "leader.sqlite"
    shutil.copy(played.fleet.leader, path)
    with sqlite3.connect(path) as state:
        state.execute(f"UPDATE windows SET {column} = ? WHERE window = ?", (value, T0))
    state.close()
    files = transcripts(path, played.fleet.helper)
    code, out = sent("--check", played.report_id(RELEASED), *files)
    missing = value is None and column != "entry"  # the Helper's evidence proves it alone
    assert code == (0 if missing else 2), out


def test_report_that_is_not_this_hosts_is_wrong_usage(sent: Sent, played: Played) -> None:
    code, out = sent("--report", "00" * 16)
    assert code == 2
    assert "no report of this host begins with" in out
    assert sent("--check", played.report_id(RELEASED))[0] == 2
