"""Parts of the local side: /proc, systemd, reload, doctor, board, socket, the unit file."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, replace
from pathlib import Path

import psutil
import pytest

from collectors.devices.device_port import DeviceReading, DeviceSample, Field
from collectors.interface import SourceRegistry
from collectors.records.activity import Record
from edge_agent.config import AgentConfig, LogSection, ReplaySection, SourcesSection, TrustSection
from edge_agent.local.gathering import DeviceRows
from edge_agent.local.live_socket import LiveClient, LiveSocket
from edge_agent.local.local_rows import MetricRow, clean_name, unit_of
from edge_agent.local.proc_view import HostSampler
from edge_agent.local.recent import MOST_ACTIVITY, Recent
from edge_agent.open_agent import sources_of
from edge_agent.service.doctor import AgentState, ThisMachine, library
from edge_agent.service.doctor_sources import source_findings
from edge_agent.service.reload import reload
from tests.agent_live import surroundings
from tests.agent_world import T0
from tests.child_kit import as_user
from tests.fleet_kit import fleet_folder
from tests.local_kit import BOOT, S, activity, at, flattener, one_of_each, ticks
from transport.process import supervision
from transport.process.doctor_checks import CheckVerdict, Finding, examine, way_out, worst
from transport.process.supervision import Notifier
from transport.settings.config import ConfigError, assignment, overlay
from wire.catalogue import Catalogue
from wire.envelope import Kind
from wire.topics import ROSTERS, roster_key

_ENSURE_USERS = "from transport.process.privileges import ensure_users; ensure_users()"
UNITS = sorted(Path("deploy/systemd").glob("*.service"))


def fake_proc(root: Path, *, busy: int, softirqs: int, spent: int, sectors: int) -> None:
    (root / "net").mkdir(parents=True, exist_ok=True)
    (root / "pressure").mkdir(exist_ok=True)
    (root / "77").mkdir(exist_ok=True)
    (root / "stat").write_text(
        f"cpu {busy} 0 0 {1000 - busy}{6 * ' 0'}\ncpu0 {busy} 0 0 {1000 - busy}{6 * ' 0'}\n"
        "procs_running 3\nprocs_blocked 1\n"
    )
    (root / "softirqs").write_text(f"   CPU0 CPU1\nTIMER: {softirqs} {softirqs}\n")
    (root / "diskstats").write_text(
        f"8 0 sda 1 0 {sectors} 5 1 0 0 0 0 50 0\n8 1 sda1 1 0 {sectors} 5 1 0 0 0 0 50 0\n"
    )
    (root / "net/dev").write_text(f"|\n|\neth0: {sectors} 1 0 0 0 0 0 0 7 1 0 0 0 0 0 0\n")
    (root / "meminfo").write_text("MemTotal: 1000 kB\nMemAvailable: 400 kB\n")
    (root / "loadavg").write_text("0.50 0.25 0.10 1/2 3\n")
    (root / "pressure/cpu").write_text("some avg10=12.50 avg60=1.00 avg300=0.00 total=5\n")
    fields = " ".join(["S", *["0"] * 10, str(spent), "0", *["0"] * 6, "5", *["0"] * 32])
    (root / "77/stat").write_text(f"77 (a) b\x1b[2J) {fields}")
    (root / "77/statm").write_text("5 3 1 1 0 1 0")
    (root / "77/schedstat").write_text(f"0 {spent * 1_000_000} 1")


@pytest.fixture
def proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A /proc of its own: psutil keeps processes by number, the machine's 77 among them."""
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(tmp_path))
    psutil.process_iter.cache_clear()
    yield tmp_path
    psutil.process_iter.cache_clear()


def test_host_sampler_gives_rates_of_a_known_proc(proc: Path) -> None:
    times = iter([0, 2 * S])
    fake_proc(proc, busy=100, softirqs=1_000, spent=100, sectors=1_000)
    sampler = HostSampler(lambda: next(times))
    fake_proc(proc, busy=250, softirqs=1_500, spent=200, sectors=5_000)
    (proc / "stat").write_text(
        f"cpu 250 0 0 950{6 * ' 0'}\ncpu0 250 0 0 950{6 * ' 0'}\nprocs_running 3\nprocs_blocked 1\n"
    )
    view = sampler.view()
    assert view.cpu_percent["user"] == pytest.approx(75.0)
    assert list(view.cpus_percent) == pytest.approx([75.0])
    assert view.softirqs_per_s["TIMER"] == 500.0
    assert view.run_queue["running"] == 3.0
    assert view.pressure == {"cpu_some": 12.5}
    (disk,) = view.disks  # the partition repeats its disk
    assert disk.read_bytes_per_s == 4_000 * 512 / 2
    assert view.links[0].receive_bytes_per_s == 2_000.0
    (process,) = view.processes
    assert process.cpu_percent == pytest.approx(50.0)
    assert process.wait_percent == pytest.approx(5.0)
    assert "\x1b" not in process.name
    assert process.name.startswith("a) b")


def test_host_sampler_survives_an_empty_proc(proc: Path) -> None:
    assert not list(proc.iterdir())
    view = HostSampler().view()
    assert view.processes == ()
    assert view.pressure == {}


def test_notifier_speaks_as_sd_notify(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    listener.bind(str(tmp_path / "notify"))
    listener.setblocking(False)
    now = [0]
    environment = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "4000000"}
    notifier = Notifier.from_environment(environment)
    monkeypatch.setattr(supervision, "_monotonic_us", lambda: now[0])
    notifier.ready("sources: host")
    for now[0] in (0, 500_000, 999_999, 1_000_000, 1_500_000, 2_000_000):
        notifier.alive()
    notifier.stopping()
    heard = [listener.recv(4096).decode() for _ in range(5)]
    with pytest.raises(BlockingIOError):
        listener.recv(4096)
    assert heard == ["READY=1\nSTATUS=sources: host", *["WATCHDOG=1"] * 3, "STOPPING=1"]
    listener.close()


def test_notifier_of_another_process_keeps_quiet() -> None:
    other = Notifier.from_environment({"WATCHDOG_USEC": "1000", "WATCHDOG_PID": "1"})
    assert other._watchdog_us == 0
    Notifier.from_environment({"NOTIFY_SOCKET": "/nowhere/notify"}).ready("nobody listens")


def test_reload_takes_sources_and_log_and_holds_trust_back(tmp_path: Path) -> None:
    config = surroundings(tmp_path).config
    trust = TrustSection(frozenset({bytes(32)}), frozenset({bytes([1] * 32)}))
    found = replace(config, trust=trust, log=LogSection("error"), sources=SourcesSection(host=True))
    done = reload(config, lambda: found)
    assert (done.outcome, done.changed, done.held_back) == (
        "held_back", ("sources", "log"), ("trust",)
    )  # fmt: skip
    assert done.config.trust == config.trust
    assert done.config.log.level == "error"

    def broken() -> None:
        raise ConfigError("host: expected a table")

    refused = reload(config, broken)  # type: ignore[arg-type]
    assert refused.outcome == "refused"
    assert refused.config is config


def test_assignments_read_toml_and_bare_words() -> None:
    tree = overlay(assignment("log.level=debug"), assignment("history.max_bytes = 8_000_000"))
    assert tree == {"log": {"level": "debug"}, "history": {"max_bytes": 8_000_000}}
    with pytest.raises(ConfigError, match="expected section"):
        assignment("no equals sign")


class _MissingSource:
    name = "ebpf"

    def probe(self) -> str | None:
        return "libbpf.so.1 cannot be loaded\x1b[2J"

    def start(self) -> None: ...

    def drain(self, now_boottime_ns: int) -> Iterable[Record]:
        return []

    def stop(self) -> None: ...


class _BrokenSource(_MissingSource):
    name = "odd"

    def probe(self) -> str | None:
        raise OSError("out of luck")


def test_doctor_gives_one_thing_to_do_about_each(tmp_path: Path) -> None:
    made = surroundings(tmp_path)
    registry = SourceRegistry()
    registry.register("ebpf", _MissingSource)
    registry.register("odd", _BrokenSource)
    findings = list(source_findings(registry, made.config))
    by_name = {one.name: one for one in findings}
    assert by_name["ebpf"].verdict is CheckVerdict.ABSENT
    assert "libbpf1" in (by_name["ebpf"].do or "")
    assert "\x1b" not in by_name["ebpf"].found
    assert by_name["odd"].verdict is CheckVerdict.BROKEN
    assert by_name["host"].found.startswith("switched off")
    assert all(one.do for one in findings)
    assert worst(findings) is CheckVerdict.BROKEN


def test_doctor_tries_a_source_whose_looks_are_well(tmp_path: Path) -> None:
    """A trace that is there is no trace that can be played."""
    (tmp_path / "trace.json").write_text("no trace")
    made = surroundings(tmp_path)
    replay = ReplaySection(tmp_path / "trace.json")
    config = replace(made.config, sources=replace(made.config.sources, replay=(replay,)))
    registry = sources_of(config, Catalogue.load())
    by_name = {one.name: one for one in source_findings(registry, config)}
    assert by_name["replay-0"].verdict is CheckVerdict.ABSENT
    assert "trace.json" in by_name["replay-0"].found


def test_doctor_finds_what_keeps_the_agent_from_running(tmp_path: Path) -> None:
    made = surroundings(tmp_path)
    well = {one.name: one for one in examine(AgentState(made.config))}
    assert well["key"].verdict is CheckVerdict.OK
    assert well["state folder"].verdict is CheckVerdict.BROKEN  # no start has made it yet
    by_root = {one.name: one for one in examine(AgentState(made.config, started_by_root=True))}
    assert by_root["state folder"].verdict is CheckVerdict.OK  # root's first start makes it
    made.run(1_800_000_000, 1_800_000_002)
    assert {one.name: one for one in examine(AgentState(made.config))}["ledger"].do is None
    made.config.ledger_file.unlink()
    made.config.host.key_file.chmod(0o644)
    ill = {one.name: one for one in examine(AgentState(made.config))}
    assert ill["key"].verdict is CheckVerdict.BROKEN
    assert ill["ledger"].do == "pointillist agent ledger recover"


@pytest.mark.root
def test_doctor_names_what_root_left_where_the_agent_writes() -> None:
    """Somebody gave one command as root: the agent would end at its first transaction."""
    nobody = 65534
    with fleet_folder() as folder:
        made = surroundings(folder)
        made.run(T0, T0 + 2)
        config, fence = made.config, made.config.fence_file
        for path in (folder, *folder.rglob("*")):
            os.chown(path, nobody, nobody)

        def told() -> dict[str, list[str]]:
            found = as_user(nobody, lambda: [asdict(one) for one in examine(AgentState(config))])
            return {one["name"]: [one["verdict"], str(one["do"])] for one in found}

        assert {told()[name][0] for name in ("key", "ledger", "state folder")} == {"ok"}
        for left, name in (
            (fence, "key"),
            (fence.parent, "key"),
            (config.ledger_file, "state folder"),
            (config.host.state_dir, "state folder"),
        ):
            os.chown(left, 0, 0)
            left.chmod(left.stat().st_mode | 0o055 if left.is_dir() else 0o644)
            verdict, do = told()[name]
            assert (verdict, f"chown nobody {left}" in do) == ("broken", True), do
            os.chown(left, nobody, nobody)


def test_doctor_names_the_series_whose_cohort_is_too_small(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = surroundings(tmp_path)
    monkeypatch.setattr(time, "time", lambda: T0 + 4)  # later the task is over, and waits no more
    made.run(T0, T0 + 2)
    assert _cohorts(made.config).found == "no series waits for hosts"
    weights = {"demo": 600_000}
    small = made.world.roster(weights, version=2, crowd=79)
    made.publish(ROSTERS, roster_key(), Kind.ROSTER, small)
    made.run(T0 + 2, T0 + 4)
    assert _cohorts(made.config).verdict is CheckVerdict.ABSENT
    assert "demo: roster_small: 79 hosts on the roster" in _cohorts(made.config).found


def _cohorts(config: AgentConfig) -> Finding:
    return next(one for one in examine(AgentState(config)) if one.name == "cohorts")


def test_doctor_asks_the_broker() -> None:
    class _Kafka:
        def __init__(self, address: str) -> None:
            self.bootstrap = (address,)

    class _Section:
        def __init__(self, address: str) -> None:
            self.kafka = _Kafka(address)

    with socket.create_server(("127.0.0.1", 0)) as broker:
        port = broker.getsockname()[1]
        assert next(examine(way_out(_Section(f"127.0.0.1:{port}")))).verdict is CheckVerdict.OK
    away = next(examine(way_out(_Section(f"127.0.0.1:{port}"))))
    assert away.verdict is CheckVerdict.BROKEN
    assert away.do


def machine(name: str, looked_at: ThisMachine) -> Finding:
    return next(one for one in examine(looked_at) if one.name == name)


def test_doctor_looks_at_the_machine(tmp_path: Path) -> None:
    findings = {one.name: one for one in examine(ThisMachine(tmp_path))}
    assert findings["btf"].verdict is CheckVerdict.ABSENT
    (tmp_path / "proc/pressure/cpu").mkdir(parents=True)
    unread = {one.name: one for one in examine(ThisMachine(tmp_path))}["pressure"]
    assert unread.verdict is CheckVerdict.ABSENT
    assert unread.found.endswith("proc/pressure/cpu: Is a directory")
    assert all(one.do for one in findings.values() if one.verdict is not CheckVerdict.OK)
    assert machine("kernel", ThisMachine(release="4.19.0")).verdict is CheckVerdict.ABSENT
    assert machine("kernel", ThisMachine(release="6.1.0-44")).verdict is CheckVerdict.OK
    assert library("libnone-of-this-name.so.9", "install it").do == "install it"


BOTH = 1 << 38 | 1 << 39


@pytest.mark.parametrize(
    ("wanted", "by_root", "effective", "verdict", "says"),
    [
        (("CAP_BPF", "CAP_PERFMON"), True, BOTH, "ok", "by root, has CAP_BPF, CAP_PERFMON"),
        (("CAP_BPF", "CAP_PERFMON"), True, 1 << 39, "absent", "without CAP_PERFMON"),
        (("CAP_BPF", "CAP_PERFMON"), False, 0, "absent", "by this user, has none"),
        ((), True, ~0, "ok", "keeps none"),
        (None, True, ~0, "ok", "where a configured source asks"),
    ],
)
def test_doctor_says_which_capabilities_the_agent_will_have(
    wanted: tuple[str, ...] | None, by_root: bool, effective: int, verdict: str, says: str
) -> None:
    looked_at = ThisMachine(wanted=wanted, started_by_root=by_root, effective=effective)
    found = machine("capabilities", looked_at)
    assert found.verdict.value == verdict
    assert says in found.found
    assert (found.do is None) is (verdict == "ok")


@pytest.mark.slow
@pytest.mark.root
def test_doctor_started_as_root_says_what_agent_run_keeps(tmp_path: Path) -> None:
    """What the doctor finds after root is given up is what a process that became the agent has."""
    subprocess.run([sys.executable, "-c", _ENSURE_USERS], check=True)
    made = surroundings(tmp_path)
    config = made.folder / "agent.toml"
    config.write_text(
        f'''[host]
key_file = "{made.config.host.key_file}"
state_dir = "{made.config.host.state_dir}"
[transport]
folder = "{made.config.transport.folder}"
[trust]
leaders = ["{made.world.leader.pk.hex()}"]
helpers = ["{made.world.helper.pk.hex()}"]
[sources]
ebpf = true
'''
    )
    done = subprocess.run(
        [sys.executable, "-c", "from pointillist.cli import main; main()", "agent", "doctor",
         "-c", str(config), "--json"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    shown = json.loads(done.stdout)
    (found,) = [one for one in shown["findings"] if one["name"] == "capabilities"]
    assert found["verdict"] == "ok"
    kept = re.search(r"keeps (CAP.*)", done.stderr)
    assert kept is not None
    assert found["found"].endswith(kept[1])


def test_view_does_not_show_what_is_old() -> None:
    recent, flat = Recent(), flattener()
    recent.add(flat.rows("test", one_of_each(BOOT)))
    recent.add(flat.rows("ebpf", [ticks(BOOT, 100, 7)]))
    fresh = recent.view(at(BOOT + 2 * S))
    rates = {level.name: level.last for level in fresh.levels if level.source == "ebpf"}
    assert rates["switches"] == pytest.approx(1_400.0)
    assert fresh.kernels[0].kernel == "gemm_kernel"
    old = recent.view(at(BOOT + 30 * S))
    assert (old.levels, old.kernels) == ((), ())
    assert old.events[0]["age_s"] == 30


def test_view_is_bounded() -> None:
    recent, flat = Recent(), flattener()
    for number in range(5_000):
        recent.add(flat.rows("test", [activity(BOOT, f"kernel-{number}")]))
        recent.add(flat.rows(f"source-{number}", one_of_each(BOOT)[1:4]))
    view = recent.view(at(BOOT + S))
    assert len(view.levels) == 2_000
    assert len(view.events) == 50
    assert len(view.kernels) + view.left_out["timed_kernels"] == MOST_ACTIVITY


def test_device_rows_give_each_look_once() -> None:
    reading = DeviceReading(0, "GPU-1", "H100", BOOT - 10, BOOT, {Field.POWER: 300_000})
    rows, look = DeviceRows(), DeviceSample((reading,))
    (power,) = rows.rows("gpu-nvidia", look)
    assert isinstance(power, MetricRow)
    assert (power.name, power.key, power.unit, power.value) == (
        "gpu.power_mw", "GPU-1", "mW", 300_000.0
    )  # fmt: skip
    assert list(rows.rows("gpu-nvidia", look)) == []
    assert list(rows.rows("host", None)) == []
    assert rows.models == {"GPU-1": "H100"}


def test_live_socket_answers_from_a_deep_folder_and_is_private(tmp_path: Path) -> None:
    folder = tmp_path / ("deep" * 20) / ("er" * 40)
    folder.mkdir(parents=True)
    path = folder / "live.sock"
    client = LiveClient(path)
    with pytest.raises(OSError, match="No such file"):
        client.poll()
    listening = LiveSocket(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert client.poll() is None
    assert listening.serve(lambda: ['{"values": ', json.dumps(list(range(10_000))), "}"]) == 1
    assert client.poll() == {"values": list(range(10_000))}
    assert listening.serve(lambda: pytest.fail("nobody asked")) == 0
    listening.close()
    assert not path.exists()


def test_answer_that_is_nested_without_end_is_none(tmp_path: Path) -> None:
    path = tmp_path / "live.sock"
    client = LiveClient(path)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen(1)
        assert client.poll() is None
        with listening.accept()[0] as peer:
            peer.sendall(b"[" * 50_000)
    assert client.poll() is None


def test_live_socket_of_a_later_agent_stays_when_an_earlier_one_ends(tmp_path: Path) -> None:
    path = tmp_path / "live.sock"
    earlier, later = LiveSocket(path), LiveSocket(path)
    earlier.close()
    client = LiveClient(path)
    assert client.poll() is None
    assert later.serve(lambda: ['{"of": "later"}']) == 1
    assert client.poll() == {"of": "later"}
    later.close()
    assert not path.exists()


def test_unknown_records_are_counted_and_names_cleaned() -> None:
    flat = flattener()
    assert list(flat.rows("odd", [object()])) == []
    assert flat.dropped == {"unknown_record": 1}
    assert clean_name("a\x1b[2J\n") == r"a\x1b[2J\n"
    assert len(clean_name("x" * 10_000)) == 200
    assert [unit_of(n) for n in ("cpu_ns", "rx_bytes_per_s", "switches")] == ["ns", "bytes/s", ""]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: str(unit.stem))
def test_systemd_unit_is_one(unit: Path) -> None:
    done = subprocess.run(
        ["systemd-analyze", "verify", str(unit.absolute())],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert unit.name not in done.stderr, done.stderr
    text = unit.read_text(encoding="utf-8")
    if unit.stem != "pointillist-web":  # a server's loop: whoever asks it sees that it stands
        assert "Type=notify" in text
        assert "StartLimitIntervalSec=0" in text  # none gives up after some starts
        assert "WatchdogSec=" in text
