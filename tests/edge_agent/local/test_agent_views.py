"""The agent as people run it: top under a terminal, signals, history, systemd, a restart."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import signal
import socket
import struct
import subprocess
import sys
import termios
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyarrow import parquet

from edge_agent.local.history_read import HistoryReader
from edge_agent.local.view_lines import document
from edge_agent.service.agent_service import AgentService
from tests.agent_live import SteppedClock, Surroundings, run_until, surroundings
from tests.agent_world import T0
from tests.integration.test_agent_cli import write_config
from wire.envelope import unwrap
from wire.report import Report
from wire.topics import REPORTS

pytestmark = pytest.mark.release

PATIENCE_S = 60
_PANELS = (
    "top processes", "run queue and softirq", "disk and network", "GPU", "cpu some",
    "the report about to leave", "beside the running agent",
)  # fmt: skip
_CODE = (
    "import pointillist.cli.agent_file as a; a.become_agent = lambda config: None;"
    "from pointillist.cli import main; main()"
)


class RunningAgent:
    """A real `agent run` with a notify socket."""

    def __init__(self, made: Surroundings, config: Path) -> None:
        self.config = config
        self.notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.notify.bind(str(made.folder / "notify"))
        self.notify.settimeout(PATIENCE_S)
        environment = {**os.environ, "NOTIFY_SOCKET": str(made.folder / "notify"),
                       "WATCHDOG_USEC": "400000"}  # fmt: skip
        environment.pop("WATCHDOG_PID", None)
        self.log = (made.folder / "log.txt").open("w")
        self.child = subprocess.Popen(
            [sys.executable, "-c", _CODE, "agent", "run", "-c", str(config)],
            stderr=self.log,
            env=environment,
        )

    def told(self, what: str) -> list[str]:
        """Read what systemd is told until a line of it comes."""
        seen: list[str] = []
        while what not in seen:
            seen += self.notify.recv(4096).decode().split("\n")
        return seen

    def text(self) -> str:
        return Path(self.log.name).read_text(encoding="utf-8")

    def stop(self) -> int:
        self.child.terminate()
        code = self.child.wait(PATIENCE_S)
        self.log.close()
        return code


@contextmanager
def running_agent(folder: Path) -> Iterator[RunningAgent]:
    made = surroundings(folder)
    config = write_config(made)
    with config.open("a") as file:
        file.write("\n[metrics]\nport = 0\n")
    running = RunningAgent(made, config)
    try:
        running.told("READY=1")
        yield running
    finally:
        if running.child.poll() is None:
            running.child.kill()
            running.child.wait()
        running.log.close()
        running.notify.close()


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningAgent]:
    """An agent to look at; nobody tells it anything."""
    with running_agent(tmp_path_factory.mktemp("agent")) as running:
        yield running
        assert running.stop() == 0


@pytest.fixture
def own_agent(tmp_path: Path) -> Iterator[RunningAgent]:
    """An agent that the test may change and end."""
    with running_agent(tmp_path) as running:
        yield running


def under_a_terminal(*arguments: str, until: str, key: bytes) -> tuple[str, int, bool]:
    """Run a command under a pty until its picture shows a text, press a key, and wait."""
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("4H", 50, 160, 0, 0))
    before = termios.tcgetattr(follower)
    # The terminal's own size is what counts.
    surrounding = {k: v for k, v in os.environ.items() if k not in {"COLUMNS", "LINES"}}
    child = subprocess.Popen(
        [sys.executable, "-c", _CODE, *arguments],
        stdin=follower, stdout=follower, stderr=subprocess.DEVNULL,
        env={**surrounding, "TERM": "xterm-256color"}, start_new_session=True,
    )  # fmt: skip
    shown, pressed = "", False
    deadline = time.monotonic() + PATIENCE_S
    while child.poll() is None and time.monotonic() < deadline:
        if select.select([leader], [], [], 0.1)[0]:
            shown += os.read(leader, 65536).decode("utf-8", "replace")
        if not pressed and until in shown:
            os.write(leader, key)
            pressed = True
    if child.poll() is None:
        child.kill()
    while select.select([leader], [], [], 0)[0]:
        shown += os.read(leader, 65536).decode("utf-8", "replace")
    restored = termios.tcgetattr(follower) == before
    os.close(leader)
    os.close(follower)
    return shown, child.wait(), restored


def test_agent_top_shows_the_host_beside_an_agent_and_ends_on_q(agent: RunningAgent) -> None:
    arguments = ("agent", "top", "-c", str(agent.config), "--interval", "0.3")
    shown, code, restored = under_a_terminal(*arguments, until="running: host", key=b"q")
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown)
    for part in _PANELS:
        assert part in plain, part
    assert code == 0
    assert restored, "the terminal was not given back as it was"
    assert shown.rindex("\x1b[?1049l") > shown.rindex("\x1b[?1049h")


def test_agent_top_without_an_agent_reads_the_sources(tmp_path: Path) -> None:
    config = write_config(surroundings(tmp_path))
    command = [sys.executable, "-c", _CODE, "agent", "top", "-c", str(config), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    shown = json.loads(done.stdout)
    assert "host" in shown["agent"]["sources"]
    assert "replay-0" in {name for name, _why in shown["agent"]["absent"]}
    assert shown["reports"] == []
    assert shown["host"]["memory_bytes"]["total"] > 0
    assert {one["name"] for one in shown["levels"]} >= {"host_cpu", "host_memory"}


def _another_digit(found: re.Match[str]) -> str:
    return f'leaders = ["{(int(found[1], 16) + 1) % 16:x}'


def test_agent_tells_systemd_reloads_and_keeps_trust(own_agent: RunningAgent) -> None:
    own_agent.told("WATCHDOG=1")
    text = own_agent.config.read_text()
    changed = text.replace("host = true", "host = false") + '[log]\nlevel = "warning"\n'
    own_agent.config.write_text(re.sub(r'leaders = \["(.)', _another_digit, changed))
    own_agent.child.send_signal(signal.SIGHUP)
    seen = own_agent.told("RELOADING=1")
    assert any(line.startswith("MONOTONIC_USEC=") for line in seen)
    assert "STATUS=reload: held_back: sources, log, trust" in own_agent.told("READY=1")
    own_agent.config.write_text("no toml [")
    own_agent.child.send_signal(signal.SIGHUP)
    own_agent.told("RELOADING=1")
    (status,) = [line for line in own_agent.told("READY=1") if line.startswith("STATUS=")]
    assert status.startswith("STATUS=reload: refused: ")
    assert "expected TOML" in status
    port = re.search(r"127\.0\.0\.1:(\d+)", own_agent.text())
    assert port is not None
    own_agent.told("WATCHDOG=1")
    with urllib.request.urlopen(f"http://127.0.0.1:{port[1]}/metrics", timeout=10) as answer:
        page = answer.read().decode()
    assert 'pointillist_agent_source_up{source="host"}' not in page
    assert 'pointillist_agent_reloads_total{outcome="held_back"} 1.0' in page
    names = {line.split("{")[0].split(" ")[0] for line in page.splitlines() if line[0] != "#"}
    assert all(name.startswith("pointillist_agent_") for name in names), names
    assert own_agent.stop() == 0
    assert "STOPPING=1" in own_agent.told("STOPPING=1")
    reloads = [json.loads(line) for line in own_agent.text().splitlines() if '"reloaded"' in line]
    assert [one["outcome"] for one in reloads] == ["held_back", "refused"]
    assert reloads[0]["changed"] == ["sources", "log"]
    assert reloads[0]["needs_restart"] == ["trust"]


def test_agent_history_speaks_json_and_parquet(agent: RunningAgent, tmp_path: Path) -> None:
    for _ in range(5):
        agent.told("WATCHDOG=1")
    call = [sys.executable, "-c", _CODE, "agent", "history", "-c", str(agent.config)]
    done = subprocess.run([*call, "--since", "5m", "--json"], capture_output=True, check=True)
    shown = json.loads(done.stdout)
    assert {level["name"] for level in shown["levels"]} >= {"host_cpu", "host_memory"}
    assert [event["name"] for event in shown["events"]][:2] == ["started", "source_absent"]
    rows_of = [*call, "--since", "5m", "--json", "--kind", "metric"]
    done = subprocess.run(rows_of, capture_output=True, check=True)
    rows = json.loads(done.stdout)["metric"]
    assert {row["name"] for row in rows} >= {"host_cpu", "host_memory"}
    assert all(0 < row["unix_error_ns"] < 1_000_000_000 for row in rows)
    out = tmp_path / "out.parquet"
    subprocess.run([*call, "--since", "5m", "--name", "host_*", "--parquet", str(out)], check=True)
    table = parquet.read_table(out)
    assert set(table["name"].to_pylist()) <= {
        "host_cpu",
        "host_memory",
        "host_disk",
        "host_network",
    }
    assert table.num_rows >= 4
    assert out.stat().st_mode & 0o777 == 0o600
    wrong = subprocess.run([*call, "--since", "soon"], capture_output=True, check=False)
    assert wrong.returncode == 2


def test_agent_run_does_without_a_file(tmp_path: Path) -> None:
    made = surroundings(tmp_path)
    flags = [
        "--key-file", str(made.config.host.key_file), "--state-dir", str(made.folder / "state"),
        "--log-folder", str(made.config.transport.folder), "--gpu", "H100", "--gpu", "H100",
        "--leader", made.world.leader.pk.hex(), "--helper", made.world.helper.pk.hex(),
        "--set", "bounds.n_min_at_least=80", "--set", "metrics.enabled=false",
        "--set", "log.level=debug",
    ]  # fmt: skip
    child = subprocess.Popen(
        [sys.executable, "-c", _CODE, "agent", "run", *flags], stderr=subprocess.PIPE, text=True
    )
    assert child.stderr is not None
    for line in child.stderr:
        if '"demo_task"' in line:
            break
    child.terminate()
    rest = child.stderr.read()
    assert child.wait(PATIENCE_S) == 0
    assert '"event": "stopped"' in rest


def test_a_restart_loses_at_most_the_open_window(tmp_path: Path) -> None:
    """Stopped in the middle of a window and started anew in the next: every other one is there."""
    made = surroundings(tmp_path, window_s=4)
    for start, end in ((T0, T0 + 18), (T0 + 21, T0 + 45)):
        clock = SteppedClock(start)
        runtime = made.agent(clock)
        runtime.observe(AgentService(runtime, made.config, clock=clock))
        run_until(runtime, clock, end)
        runtime.close()
    made.run(T0 + 45, T0 + 60)  # leaves what was sealed at the end
    windows = [
        Report.decode(unwrap(record.value, 1 << 20)[1]).header.window
        for record in made.records(REPORTS)
    ]
    assert len(windows) == len(set(windows))
    missing = set(range(T0, T0 + 44, 4)) - set(windows)
    assert missing <= {T0 + 16}, "only the window that was open at the stop may be missing"
    with HistoryReader(made.config.history_file) as reader:
        events = [row["name"] for row in reader.rows("event")]
    assert events == ["started", "unmeasured", "stopping"] * 2, "no source runs here"


def test_the_live_view_shows_the_report_and_its_noise_and_changes_nothing(tmp_path: Path) -> None:
    made = surroundings(tmp_path)
    clock = SteppedClock(T0)
    runtime = made.agent(clock)
    service = AgentService(runtime, made.config, clock=clock)
    runtime.observe(service)
    run_until(runtime, clock, T0 + 6)
    first, second = service.view(), service.view()
    assert first == second
    (report,) = document(first)["reports"]
    assert report["series"] == "demo"
    (mix, host) = report["sections"]
    spec = made.task.sections[0]
    assert mix["name"] == "kernel_mix"
    assert mix["noise"] == pytest.approx(spec.sigma_1024 / 1024 * spec.q)
    assert mix["cells"][0]["cell"].endswith("unmeasured")
    assert mix["cells"][0]["value"] == 2 * 4 * 1000  # two GPUs that no source watches
    assert host["unit"] == "millionths of full scale"
    runtime.close()
