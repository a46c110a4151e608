"""`pointillist agent` as a person runs it: real processes, signals, exit codes, JSON."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from aggregator.enrolment.enrolment import open_join
from edge_agent.ledger import ledger_db
from edge_agent.ledger.ledger import Ledger
from edge_agent.ledger.ledger_db import read_view
from edge_agent.ledger.ledger_records import LedgerFull
from edge_agent.membership import hardware_names, join_request
from edge_agent.open_agent import load_host, this_machine
from pointillist.cli import main
from privacy.signing import SigningKey
from tests.agent_live import SteppedClock, Surroundings, run_until, surroundings
from tests.agent_world import T0
from transport.files.keyfiles import machine_id
from transport.files.private_files import JoinToken, write_token
from wire.envelope import Kind, unwrap
from wire.fields import host_id, key_id
from wire.topics import JOINS, KEYS, announcement_key

pytestmark = pytest.mark.slow

PATIENCE_S = 60


def write_config(made: Surroundings) -> Path:
    config = made.config
    path = made.folder / "agent.toml"
    path.write_text(
        f"""
[host]
key_file = "{config.host.key_file}"
state_dir = "{config.host.state_dir}"
gpus = ["H100", "H100"]
user = "{_me()}"
[transport]
folder = "{config.transport.folder}"
[trust]
leaders = ["{made.world.leader.pk.hex()}"]
helpers = ["{made.world.helper.pk.hex()}"]
[bounds]
n_min_at_least = 80
[sources]
host = true
[[sources.replay]]
path = "{made.folder}/no-such-trace.json"
""",
        encoding="utf-8",
    )
    return path


def _me() -> str:
    import getpass

    return getpass.getuser()


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Surroundings:
    # The test's own user keeps its files: dropping privileges has tests of its own.
    monkeypatch.setattr("pointillist.cli.agent_file.become_agent", lambda _config: None)
    return surroundings(tmp_path)


def call(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str
) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["pointillist", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    out, err = capsys.readouterr()
    code = ended.value.code
    return (code if isinstance(code, int) else 0), out, err


def test_agent_cli_ledger_show_speaks_json(
    made: Surroundings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made.run(T0, T0 + 22)
    capsys.readouterr()
    config = str(write_config(made))
    code, out, _ = call(monkeypatch, capsys, "agent", "ledger", "show", "-c", config, "--json")
    shown = json.loads(out)
    assert code == 0
    assert shown["series"][0]["windows_kept"] == 5
    assert shown["peak_of_a_week"] == pytest.approx(5 * 0.6 / 1000, abs=1e-6)


def test_agent_cli_ledger_show_before_the_first_run_does_not_send_to_recovery(
    made: Surroundings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = str(write_config(made))
    code, _, err = call(monkeypatch, capsys, "agent", "ledger", "show", "-c", config, "--json")
    shown = json.loads(err)
    assert (code, shown["exit_code"]) == (2, 2)
    assert "has not run yet" in shown["error"]
    assert "pointillist agent run" in shown["hint"]
    assert "recover" not in err


def test_agent_cli_ledger_show_of_a_lost_ledger_is_refused(
    made: Surroundings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made.run(T0, T0 + 10)
    made.config.ledger_file.unlink()
    made.config.fence_file.unlink()  # the key file alone still knows
    capsys.readouterr()
    config = str(write_config(made))
    code, _, err = call(monkeypatch, capsys, "agent", "ledger", "show", "-c", config, "--json")
    assert code == 3
    assert "ledger recover" in json.loads(err)["hint"]


def test_agent_cli_recover_without_a_terminal_says_what_to_add(
    made: Surroundings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("y"))
    options = ("agent", "ledger", "recover", "-c", str(write_config(made)))
    code, _, err = call(monkeypatch, capsys, *options)
    assert code == 2
    assert "--yes" in err


def test_agent_cli_join_says_who_must_answer(
    made: Surroundings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    announce_now(made)
    token = made.folder / "token"
    by = JoinToken.issue(SigningKey.generate(), "acme", "fleet", made.world.leader.pk, T0)
    write_token(token, by)
    options = ("--token-file", str(token), "--wait-s", "0")
    code, _, err = call(
        monkeypatch, capsys, "agent", "join", "-c", str(write_config(made)), *options
    )
    assert code == 0
    assert "Not answered yet" in err
    assert "leader roster build" in err


def test_agent_cli_recover_begins_a_new_ledger(
    made: Surroundings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made.run(T0, T0 + 10)
    made.config.ledger_file.unlink()
    capsys.readouterr()
    config = str(write_config(made))
    options = ("agent", "ledger", "recover", "-c", config, "--yes", "--json")
    code, out, _ = call(monkeypatch, capsys, *options)
    assert code == 0
    assert json.loads(out)["series"] == ["demo"]
    view = read_view(made.config.ledger_file)
    assert view.resume_after_s > 0
    assert list(view.series) == [made.task.series_key]


def test_agent_cli_recover_that_is_cut_off_leaves_no_host_with_a_whole_budget(
    made: Surroundings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A key that knows of no ledger would begin one: after a crash it must know."""
    made.run(T0, T0 + 10)
    key_file = made.config.host.key_file
    key_file.write_text(key_file.read_text().replace("ledger yes", "ledger no"))

    def crash(ledger: Path, fence: Path, **_: object) -> None:
        ledger.unlink()
        fence.unlink()
        raise KeyboardInterrupt

    config = str(write_config(made))
    with monkeypatch.context() as cut:
        cut.setattr(Ledger, "recover", crash)
        call(cut, capsys, "agent", "ledger", "recover", "-c", config, "--yes")
    assert not made.config.ledger_file.exists()
    assert "ledger yes" in key_file.read_text()


def test_agent_cli_recover_on_a_full_disk_says_so_and_is_called_again(
    made: Surroundings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made.run(T0, T0 + 10)
    made.config.ledger_file.unlink()
    options = ("agent", "ledger", "recover", "-c", str(write_config(made)), "--yes")
    with monkeypatch.context() as full:

        def no_room(*_: object) -> None:
            raise LedgerFull("SQLite says: database or disk is full")

        full.setattr(ledger_db, "upsert_series", no_room)
        code, _, err = call(full, capsys, *options)
    assert code == 4
    assert "free space on the ledger's disk" in err
    assert call(monkeypatch, capsys, *options)[0] == 0


def test_agent_cli_recover_refuses_while_the_agent_runs(
    made: Surroundings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = SteppedClock(T0)
    shell = made.agent(clock)
    run_until(shell, clock, T0 + 5)
    capsys.readouterr()
    options = ("agent", "ledger", "recover", "-c", str(write_config(made)), "--yes")
    code, _, err = call(monkeypatch, capsys, *options)
    shell.close()
    assert code == 3
    assert "only agent" in err


def test_agent_cli_join_sends_a_sealed_request(
    made: Surroundings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    announce_now(made)
    file = made.folder / "token"
    by = JoinToken.issue(SigningKey.generate(), "acme", "fleet", made.world.leader.pk, T0)
    write_token(file, by)
    options = ("--token-file", str(file), "--wait-s", "0", "--json")
    code, out, _ = call(
        monkeypatch, capsys, "agent", "join", "-c", str(write_config(made)), *options
    )
    assert code == 0
    (record,) = made.records(JOINS)
    pair = made.world.leader.hpke
    core = unwrap(record.value, 1 << 16)[1]
    request = open_join(core, {key_id(pair.public_bytes): pair})
    host = load_host(made.config, this_machine(made.config))
    assert host_id(request.ed25519_pk) == host.host_id
    names = hardware_names(machine_id(), ())
    assert request == join_request(host, names, by, ((2, 2),))
    assert json.loads(out)["answered"] is False
    assert by.voucher.token_pk not in record.value


def announce_now(made: Surroundings) -> None:
    """Publish sealing keys that are in force by the command's own clock."""
    for key in made.world.keys(int(time.time())):
        made.publish(
            KEYS, announcement_key(key.party_pk, key.key_id), Kind.KEY_ANNOUNCEMENT, key.encode()
        )


@pytest.mark.parametrize(
    ("content", "leader", "code", "words"),
    [
        (b"a token of one use\n", None, 2, "expected a token, one line that begins with plst1-"),
        (None, b"\1" * 32, 3, "a Leader of trust.leaders"),
        (None, None, 4, "announced key of the Leader in force now"),
    ],
)
def test_agent_cli_join_refuses_a_token_it_cannot_use(
    made: Surroundings,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    content: bytes | None,
    leader: bytes | None,
    code: int,
    words: str,
) -> None:
    file, to = made.folder / "token", leader or made.world.leader.pk
    by = JoinToken.issue(SigningKey.generate(), "acme", "fleet", to, T0)
    file.touch(0o600)
    file.write_bytes(content or by.text().encode())
    options = ("--token-file", str(file), "--wait-s", "0")
    got, _, err = call(
        monkeypatch, capsys, "agent", "join", "-c", str(write_config(made)), *options
    )
    assert (got, words in err) == (code, True)
    assert made.records(JOINS) == []


def test_agent_cli_bad_configuration_is_wrong_usage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "agent.toml"
    path.write_text("[hosst]\n", encoding="utf-8")
    code, _, err = call(monkeypatch, capsys, "agent", "run", "-c", str(path))
    assert code == 2
    assert "hosst: unknown key (did you mean 'host'?); expected one of host" in err


@pytest.mark.release
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_agent_cli_run_stops_in_order_on_a_signal(tmp_path: Path, number: signal.Signals) -> None:
    made = surroundings(tmp_path)
    config = write_config(made)
    code = (
        "import pointillist.cli.agent_file as a; a.become_agent = lambda config: None;"
        "from pointillist.cli import main; main()"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code, "agent", "run", "-c", str(config)],
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stderr is not None
    lines: list[str] = []
    deadline = time.monotonic() + PATIENCE_S
    for line in child.stderr:
        lines.append(line)
        if '"demo_task"' in line or time.monotonic() > deadline:
            break
    child.send_signal(number)
    rest = child.stderr.read()
    assert child.wait(PATIENCE_S) == 0
    text = "".join(lines) + rest
    assert "is absent: trace" in text
    assert '"event": "stopped"' in text
    assert "demo_task" in text
    made.config.ledger_file.stat()
