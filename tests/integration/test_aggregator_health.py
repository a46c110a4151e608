"""A dead role looks dead, a waiting one says what for, and what it waited for it leaves again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from aggregator.leader.leader_runtime import LeaderRuntime
from aggregator.leader.left_out import Shift
from aggregator.party.config import HttpAddress, load_helper_config, load_leader_config
from aggregator.party.health import Health
from aggregator.releases.store import Store
from pointillist.cli import root as cli
from tests.aggregator.releases.release_kit import CATALOGUE, make_task
from tests.disk_kit import fill, small_disk
from tests.process_kit import ProcessFleet, leader_config
from tests.protocol_kit import (
    SIGMA_1024,
    T0,
    WINDOW_S,
    build_world,
    honest_reports,
    open_epochs,
    start_helper,
)
from tests.wait_kit import until
from transport.process.supervision import MetricsServer

pytestmark = pytest.mark.slow


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[ProcessFleet]:
    # Nine hosts' vectors of the kit lie within this noise, whatever they sum to.
    sections = [replace(spec, sigma_1024=10 * SIGMA_1024) for spec in make_task().sections]
    made = ProcessFleet(build_world(9, sections=tuple(sections)), tmp_path)
    yield made
    made.stop()


class InProcess:
    """A Leader whose turns a test makes, with the real store and a Helper beside it."""

    def __init__(self, fleet: ProcessFleet, state: Path | None = None) -> None:
        config = leader_config(fleet.folder, fleet.world.helper_key.public_bytes)
        state = state or fleet.folder
        self.config = replace(
            config,
            state_dir=state,
            database=state / "store" / "r.duckdb",
            releases_dir=fleet.folder / "parquet",
        )
        self.fleet = fleet
        _, self._helper_state, helper = start_helper(fleet.world, fleet.folder, fleet.clock)  # type: ignore[arg-type]
        self.store = Store(self.config.database, self.config.releases_dir, CATALOGUE)
        self.shell = LeaderRuntime(
            self.config,
            fleet.log,
            self.store,
            helper=helper,
            clock=fleet.clock,
            pause=lambda _seconds: None,
        )

    @property
    def troubles(self) -> dict[str, Any]:
        self.shell._say_status()
        found: dict[str, Any] = self.shell.health.document["troubles"]
        return found

    def turn_until_read(self, reports: int) -> None:
        for _ in range(100):
            self.shell._turn()
            if self.shell._leader.admitted >= reports:
                return
        raise AssertionError(f"expected {reports} reports, got {self.shell._leader.admitted}")

    def close_window(self, number: int) -> None:
        """Publish a window's reports, and let its lateness pass."""
        world, window = self.fleet.world, T0 + number * WINDOW_S
        epochs = open_epochs(world) if number == 0 else []
        reports = [one.encode() for one in honest_reports(world, window=window)]
        self.fleet.clock.set(window + WINDOW_S + 1)
        self.fleet.publish(epochs, reports)
        self.turn_until_read(len(world.hosts) * (number + 1))
        self.fleet.clock.set(window + WINDOW_S + 40)

    def turns(self, count: int) -> None:
        for _ in range(count):
            self.shell._turn()
            self.shell._calls.wait()

    def end(self) -> None:
        self.shell._end()
        self.store.close()
        self._helper_state.close()


@pytest.mark.root
def test_full_disk_is_told_waited_out_and_left_without_a_loss(
    fleet: ProcessFleet, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with small_disk(tmp_path / "disk") as disk:
        leader = InProcess(fleet, disk)
        leader.close_window(0)
        leader.turns(3)
        ballast = fill(disk)
        window = T0 + WINDOW_S
        fleet.clock.set(window + WINDOW_S + 1)
        fleet.publish([], [one.encode() for one in honest_reports(fleet.world, window=window)])
        leader.turns(3)
        fleet.clock.set(window + WINDOW_S + 40)
        leader.turns(20)
        assert str(disk) in leader.troubles["storage"]["detail"]
        assert leader.shell.health.not_ready().startswith("storage since")
        assert len(read_released(leader)) == 1
        ballast.unlink()
        fleet.clock.set(window + WINDOW_S + 120)
        leader.turns(10)
        assert leader.troubles == {}
        assert len(read_released(leader)) == 2
        told = capsys.readouterr().out
        assert told.count("trouble over") == 1
        leader.end()


def read_released(leader: InProcess) -> list[Path]:
    return sorted(leader.config.releases_dir.glob("series=*/**/*.parquet"))


def test_broken_store_is_told_and_taken_up_again(fleet: ProcessFleet) -> None:
    leader = InProcess(fleet)
    leader.close_window(0)
    leader.turns(3)
    leader.store.close()
    good = leader.config.database.read_bytes()
    leader.config.database.write_bytes(b"not a database" * 1000)
    leader.close_window(1)
    leader.turns(5)
    assert "r.duckdb" in leader.troubles["storage"]["detail"]
    leader.config.database.write_bytes(good)
    leader.turns(5)
    assert leader.troubles == {}
    assert len(read_released(leader)) == 2
    leader.end()


def test_host_that_is_named_is_told_once(
    fleet: ProcessFleet, capsys: pytest.CaptureFixture[str]
) -> None:
    leader = InProcess(fleet)
    host = bytes(16)
    leader.shell._leader.left_out.named[host] = Shift(host, "kernel_mix[0]", 41.23)
    for window in (0, 1):
        leader.close_window(window)
        leader.turns(3)
    leader.end()
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "host named" in line]
    assert host.hex() in line
    assert "shifts kernel_mix[0] by 41.2 %" in line


def test_helper_that_is_away_is_told_once_and_its_return(
    fleet: ProcessFleet, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet.start("helper")
    shell = LeaderRuntime(
        leader_config(fleet.folder, fleet.world.helper_key.public_bytes),
        fleet.log,
        Store(fleet.folder / "store" / "r.duckdb", fleet.folder / "parquet", CATALOGUE),
        clock=fleet.clock,
    )
    try:
        # Time passes: a Helper that was asked before it served is asked again.
        until(lambda: passes(fleet) and turned(shell) and shell._helper_seen_s > 0)
        capsys.readouterr()
        fleet.processes["helper"].kill()
        fleet.processes.pop("helper").join()
        until(lambda: passes(fleet) and turned(shell) and "helper_away" in troubles(shell))
        fleet.start("helper")
        until(lambda: passes(fleet) and turned(shell) and "helper_away" not in troubles(shell))
    finally:
        shell._end()
    lines = [line for line in capsys.readouterr().out.splitlines() if "helper_away" in line]
    assert ["over" in line for line in lines] == [False, True]


def turned(shell: LeaderRuntime) -> bool:
    shell._turn()
    return True


def passes(fleet: ProcessFleet) -> bool:
    fleet.clock.set(fleet.clock() + 5)
    return True


def troubles(shell: LeaderRuntime) -> dict[str, Any]:
    found: dict[str, Any] = shell._status()["troubles"]  # type: ignore[assignment]
    return found


@pytest.mark.root
def test_helper_on_a_full_disk_answers_nothing_and_goes_on_afterwards(
    fleet: ProcessFleet, tmp_path: Path
) -> None:
    from aggregator.state.state_file import StorageUnavailable
    from tests.protocol_kit import Fleet

    with small_disk(tmp_path / "disk", "1m") as disk:
        world = fleet.world
        _, state, runner = start_helper(world, disk, fleet.clock)  # type: ignore[arg-type]
        pair = Fleet(world, tmp_path / "leader", helper=runner)
        ballast = fill(disk)
        with pytest.raises(StorageUnavailable, match=r"helper\.sqlite|helper\.fence"):
            runner.submit_epochs(open_epochs(world))
        ballast.unlink()
        pair.send_epochs(open_epochs(world))
        pair.send(honest_reports(world))
        fleet.clock.set(T0 + WINDOW_S + 30)
        pair.close_window()
        assert len(pair.store.written) == 1
        # What was verified on the full disk was stored before the answer.
        assert len(list(state.epochs())) == len(world.hosts)
        state.close()
        pair.state.close()


# Status


ROLE = """
import sys, time
from pathlib import Path
from aggregator.party.health import write_status
from aggregator.party.health import Presence
path = Path(sys.argv[1])
presence = Presence(path)
write_status(path, {"pid": 1, "version": "0", "started": int(time.time()), "ready": 1,
    "time": int(time.time()) - int(sys.argv[2]), "troubles": {}, "log_lag": 3})
print("here", flush=True)
time.sleep(60)
"""


@contextmanager
def role(config: Path, said_s_ago: int = 0) -> Iterator[subprocess.Popen[str]]:
    """A process that is there and has said something."""
    status = load_leader_config(config).status_file
    child = subprocess.Popen(
        [sys.executable, "-c", ROLE, str(status), str(said_s_ago)],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "here\n"
        yield child
    finally:
        child.kill()
        child.wait()


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A Leader's configuration file."""
    text = (Path(__file__).parents[2] / "deploy" / "config" / "leader.toml").read_text()
    path = tmp_path / "leader.toml"
    state = tmp_path / "state"
    state.mkdir()
    path.write_text(text.replace("/var/lib/pointillist/leader/state", str(state)))
    return path


@dataclass(frozen=True)
class Said:
    """What the command said and how it ended."""

    code: int
    out: str
    err: str


Ask = Callable[..., Said]


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Ask:
    """Runs `pointillist leader status`."""

    def run(config: Path, *options: str) -> Said:
        arguments = ["pointillist", "leader", "status", "--config", str(config), *options]
        monkeypatch.setattr(sys, "argv", arguments)
        with pytest.raises(SystemExit) as ended:
            cli.main()
        said = capsys.readouterr()
        return Said(int(ended.value.code or 0), said.out, said.err)

    return run


def test_status_of_a_killed_leader_says_so_and_ends_with_4(config: Path, ask: Ask) -> None:
    with role(config) as child:
        assert ask(config).code == 0
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
        dead = ask(config, "--json")
    assert dead.code == 4
    assert json.loads(dead.out)["alive"] is False
    assert "does not run" in dead.err


def test_status_of_a_leader_that_says_nothing_ends_with_1(config: Path, ask: Ask) -> None:
    with role(config, said_s_ago=100):
        stuck = ask(config)
    assert stuck.code == 1
    assert "said nothing for 10" in stuck.err


def test_status_names_what_a_leader_waits_for(config: Path, ask: Ask) -> None:
    with role(config):
        path = load_leader_config(config).status_file
        said = json.loads(path.read_text())
        said["troubles"] = {"log_away": {"since": 1_700_000_000, "detail": "Kafka at x"}}
        path.write_text(json.dumps(said))
        found = ask(config)
    assert found.code == 1
    assert "Kafka at x" in found.out
    assert "waits: log_away" in found.err


# HTTP


@pytest.fixture
def served(fleet: ProcessFleet) -> Iterator[tuple[InProcess, MetricsServer]]:
    leader = InProcess(fleet)
    port = leader.shell.health.serve(HttpAddress(0))
    yield leader, port
    port.close()
    leader.end()


def fetch(port: MetricsServer, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port.port}{path}", timeout=20) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_health_readiness_and_metrics_follow_the_leader(
    served: tuple[InProcess, MetricsServer],
) -> None:
    leader, port = served
    assert fetch(port, "/healthz") == (200, "ok\n")
    assert fetch(port, "/readyz") == (503, "starting\n")
    leader.close_window(0)
    leader.turns(3)
    leader.shell._say_status()
    assert fetch(port, "/readyz") == (200, "ok\n")
    code, metrics = fetch(port, "/metrics")
    assert code == 200
    for line in (
        "pointillist_leader_windows_released_total 1.0",
        'pointillist_leader_last_window_end_seconds{series="minute"} 1.7000001e+09',
        'pointillist_leader_trouble{trouble="log_away"} 0.0',
        "pointillist_leader_reports_admitted_total 9.0",
        "pointillist_leader_log_lag_records 0.0",
    ):
        assert line in metrics
    assert fetch(port, "/other")[0] == 404


def test_loop_that_stands_is_not_healthy(monkeypatch: pytest.MonkeyPatch) -> None:
    health = Health("leader", ())
    assert health.stuck() == ""
    now_s = time.monotonic()
    monkeypatch.setattr("aggregator.party.health.time.monotonic", lambda: now_s + 61)
    assert "not gone round" in health.stuck()
    health.turned()
    assert health.stuck() == ""


def test_port_of_both_configurations_is_checked(tmp_path: Path) -> None:
    folder = Path(__file__).parents[2] / "deploy" / "config"
    for name, load in (("leader", load_leader_config), ("helper", load_helper_config)):
        text = (folder / f"{name}.toml").read_text()
        assert load(folder / f"{name}.toml").http is None
        path = tmp_path / f"{name}.toml"
        path.write_text(text + '\n[http]\nport = 9465\naddress = "::1"\n')
        assert load(path).http == HttpAddress(9465, "::1")
        for bad in ("port = 70000", 'port = 9465\naddress = "host"', "port = 1\nhost = 2"):
            path.write_text(f"{text}\n[http]\n{bad}\n")
            with pytest.raises(ValueError, match="http"):
                load(path)


def test_presence_is_one_of_any_thread_and_ends_with_the_process(tmp_path: Path) -> None:
    from aggregator.party.health import Presence, is_present

    status = tmp_path / "status.json"
    assert not is_present(status)
    found: list[bool] = []
    with Presence(status), Presence(status):
        thread = threading.Thread(target=lambda: found.append(is_present(status)))
        thread.start()
        thread.join()
    assert (found, is_present(status)) == ([True], False)
