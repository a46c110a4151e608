"""What both roles carry beside a broker, and what a report costs each of them, by its width.

Broker, Leader and Helper are processes that share the machine's cores. Every host opens an epoch,
as it does once an hour, and reports in some windows, which come at once to parties that wait for
them. What opening the epochs costs is counted as if nothing else ran meanwhile: of a minute's
window the sixtieth part. Beside a rate a bare consumer reads the same records, and NumPy adds as
many vectors.

The slopes of `pointillist size` are core time. What else the machine does only adds to it, so of
several runs the least counts. The shipped plan's width lies between the two that the line goes
through, and says how far it is off.
"""

from __future__ import annotations

import json
import multiprocessing
import signal
import statistics
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np
import psutil
from confluent_kafka import Consumer, Producer

from aggregator.enrolment.tasks import build_task, task_plan, windows_from
from aggregator.helper.helper_runtime import HelperRuntime
from aggregator.leader.leader_runtime import LeaderRuntime
from aggregator.party.channel import prepare_socket_folder
from aggregator.party.channel_address import ChannelAddress
from aggregator.party.config import HelperConfig, LeaderConfig
from aggregator.party.key_ring import DAY_S
from aggregator.protocol.released import ReleasedWindow
from bench.parts import Measured, Part, Parts
from bench.record import CACHE, Figure, commit, device
from bench.round_fleet import (
    GPUS,
    HELPER,
    HELPER_BOX,
    LEADER,
    LEADER_BOX,
    T0,
    WINDOW_S,
    Fleet,
    load_fleet,
    make_roster,
    make_task,
    sealed_chunks,
)
from bench.round_work import floor
from pointillist.broker.local import BrokerOptions, LocalBroker, RunningBroker
from pointillist.plan_file import default_plan
from pointillist.sizing import COSTS_FILE, SIZE_UNITS, Costs, TaskLoad, fit, size_of
from simulator.engine.interface import MemoryStore
from transport.factory import Side, open_transport
from transport.files.keyfiles import HpkeKeyFile, write_hpke_key, write_signing_key
from transport.interface import ForwardingTransport, Record, Transport, create_topics, partition_of
from transport.kafka.kafka_frame import KafkaSettings
from wire.catalogue import Catalogue
from wire.envelope import Kind, wrap
from wire.topics import EPOCHS, REPORTS

HOSTS: Final = 10_000
"""As many as 80,000 GPUs have: what a window costs by itself weighs as it does in a fleet."""
WINDOWS: Final = 5
EPOCHS_A_WINDOW: Final = 1 / 60
"""Of a host: it opens one an hour, and reports once a minute."""
HOUR: Final = T0 + 3600
NOW_S: Final = HOUR + (1 + WINDOWS) * WINDOW_S + 2
D: Final = 1000
WIDTHS: Final = (500, 4000)
"""Far apart: a thousand words cost less than what two runs of one width differ by."""
TURNS: Final = 3
"""Of all runs, one after the other, so that a busy minute does not meet one of them alone."""
FLEETS: Final = {"100k_gpus": 100_000 // GPUS, "1m_gpus": 1_000_000 // GPUS}
ROLES: Final = ("leader", "helper", "broker")
PATIENCE_S: Final = 300.0
_AHEAD: Final = 10_000
"""Records that the producer may hold before the rest waits for it."""
_SPAWN: Final = multiprocessing.get_context("spawn")
Message = tuple[str, bytes, bytes]
"""Topic, key and value of a record that is to be written."""


def sealed(fleet: Fleet, d: int, starts: Sequence[int]) -> list[Message]:
    """The fleet's epochs, and its reports of the windows that start so."""
    task_id, task, _signed = make_task(len(fleet.hosts), d)
    found = [(EPOCHS, raw[16:48], wrap(Kind.EPOCH, raw)) for raw in fleet.raw]
    for start in starts:
        hosts, total = iter(fleet.hosts), np.zeros(d, dtype=np.int64)
        for chunk in sealed_chunks(fleet, task_id, task, start, total):
            found += [(REPORTS, next(hosts).host_id, record.value) for record in chunk]
    return found


@cache
def hour_of_reports(d: int) -> tuple[Fleet, list[Message], list[Message]]:
    """An hour's fleet, its records, and before them a window under earlier epochs.

    Who has released the window before has joined the group and waits. Of the hour come its epochs,
    a window with which the Helper opens them, and the windows that are measured.
    """
    earlier = load_fleet(HOSTS, CACHE / "scale-fleet-0", part=500)
    fleet = load_fleet(HOSTS, CACHE / "scale-fleet-1", part=500, begun=(HOUR, 2))
    starts = [HOUR + number * WINDOW_S for number in range(1 + WINDOWS)]
    return fleet, sealed(earlier, d, [T0]), sealed(fleet, d, starts)


class HourLog:
    def __init__(self, log: KafkaSettings) -> None:
        self._log = log
        with open_transport(log, Side.AGGREGATOR) as kafka:
            create_topics(kafka)
            self._partitions = {topic: kafka.partitions(topic) for topic in (EPOCHS, REPORTS)}
        self._producer = Producer({"bootstrap.servers": log.bootstrap[0], "linger.ms": 20})

    def write(self, messages: Sequence[Message]) -> None:
        for number, (topic, key, value) in enumerate(messages, 1):
            place = partition_of(key, self._partitions[topic])
            self._producer.produce(self._log.named(topic), value, key, place)
            if number % _AHEAD == 0:
                self._producer.flush()
        self._producer.flush()

    def bare_rate(self, n: int) -> float:
        """Read n reports with librdkafka alone; reports a second."""
        consumer = Consumer({
            "bootstrap.servers": self._log.bootstrap[0], "group.id": self._log.named("bare"),
            "auto.offset.reset": "earliest", "enable.auto.commit": False,
        })  # fmt: skip
        consumer.subscribe([self._log.named(REPORTS)])
        left = n
        while not consumer.assignment():
            left -= consumer.poll(0.01) is not None
        start = time.perf_counter()
        while left:
            left -= len(consumer.consume(min(2000, left), 0.1))
        wall = time.perf_counter() - start
        consumer.close()
        return n / wall


class RunningClock:
    """The machine's clock, moved so that it stands at a moment of the fleet when it is made."""

    def __init__(self, now_s: float) -> None:
        self._ahead_s = now_s - time.time()

    def __call__(self) -> float:
        return time.time() + self._ahead_s


class HeldTransport(ForwardingTransport):
    """A log whose consumers, members of their groups, read nothing while a file is there."""

    def __init__(self, inner: Transport, hold: Path) -> None:
        super().__init__(inner)
        self._hold = hold

    def consumer(self, group: str, topics: Sequence[str]) -> Any:
        found: Any = super().consumer(group, topics)
        read = found.poll

        def poll(max_records: int, timeout_s: float) -> list[Record]:
            if not self._hold.exists():
                return list(read(max_records, timeout_s))
            time.sleep(min(timeout_s, 0.01))
            return []

        found.poll = poll
        return found


class NotingStore(MemoryStore):
    """Notes when each window was released, in seconds that all processes share."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    def write(self, release: ReleasedWindow) -> None:
        """Note the moment; the numbers are not kept."""
        del release
        with self._path.open("a") as file:
            file.write(f"{time.monotonic()}\n")


@dataclass(frozen=True, slots=True)
class Round:
    """One way to run both roles over one log."""

    folder: Path
    log: KafkaSettings
    clock: RunningClock

    @property
    def hold(self) -> Path:
        return self.folder / "hold"

    def prepare(self, signed_task: bytes, roster: bytes) -> None:
        (self.folder / "signed").mkdir()
        (self.folder / "signed" / "bench.task").write_bytes(signed_task)
        (self.folder / "signed" / "bench.roster").write_bytes(roster)
        start = T0 // DAY_S * DAY_S
        day = time.strftime("%Y-%m-%d", time.gmtime(start))
        for name, key, pair in (("leader", LEADER, LEADER_BOX), ("helper", HELPER, HELPER_BOX)):
            folder = self.folder / f"{name}-keys"
            folder.mkdir(mode=0o700)
            write_signing_key(folder / "identity.key", key)
            write_hpke_key(folder / f"{day}.hpke", HpkeKeyFile(pair, start, start + DAY_S + 3900))
        prepare_socket_folder(self.folder / "run" / "helper", None, None)

    def leader(self) -> None:
        config = LeaderConfig(
            key_dir=self.folder / "leader-keys",
            state_dir=self.folder / "leader",
            signed_dir=self.folder / "signed",
            helper_pk=HELPER.public_bytes,
            user="",
            transport=self.log,
            helper=ChannelAddress(self.folder / "run" / "helper"),
            database=self.folder / "none.duckdb",
            releases_dir=self.folder,
            catalogue=None,
            status_file=self.folder / "leader.json",
        )
        store = NotingStore(self.folder / "released")
        with HeldTransport(open_transport(self.log, Side.AGGREGATOR), self.hold) as log:
            _run(LeaderRuntime(config, log, store, clock=self.clock))

    def helper(self) -> None:
        config = HelperConfig(
            key_dir=self.folder / "helper-keys",
            state_dir=self.folder / "helper",
            fence_file=self.folder / "helper.fence",
            signed_dir=self.folder / "signed",
            leader_pk=LEADER.public_bytes,
            user="",
            address=ChannelAddress(self.folder / "run" / "helper"),
            peer_group=None,
            status_file=self.folder / "helper.json",
        )
        _run(HelperRuntime(config, clock=self.clock))

    def released(self, windows: int) -> bool:
        path = self.folder / "released"
        return path.exists() and path.read_text().count("\n") >= windows

    def epochs_open(self, count: int) -> bool:
        """Whether the Leader says that it has opened so many."""
        status = json.loads((self.folder / "leader.json").read_text())
        return bool(status["epochs_open"] >= count)


def _run(shell: LeaderRuntime | HelperRuntime) -> None:
    signal.signal(signal.SIGTERM, lambda *_: shell.stop())
    shell.run()


def wait_for(what: str, holds: Callable[[], bool]) -> None:
    """Wait until something holds. Raises RuntimeError after PATIENCE_S."""
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        if time.monotonic() > deadline:
            raise RuntimeError(f"expected {what} within {PATIENCE_S:g} s")
        time.sleep(0.02)


@contextmanager
def parties(asked: Round, broker: RunningBroker) -> Iterator[dict[str, psutil.Process]]:
    """Run both roles; give their processes and the broker's, by role."""
    roles = [_SPAWN.Process(target=run) for run in (asked.leader, asked.helper)]
    for role in roles:
        role.start()
    try:
        pids = [*(role.pid for role in roles), broker.pid]
        yield {name: psutil.Process(pid) for name, pid in zip(ROLES, pids, strict=True)}
    finally:
        for role in roles:
            role.terminate()
        for role in roles:
            role.join(20)


def cpu_s(of: Mapping[str, psutil.Process]) -> dict[str, float]:
    """Core-seconds of each and of its children that are there."""
    return {
        name: sum(sum(each.cpu_times()[:2]) for each in (one, *one.children(recursive=True)))
        for name, one in of.items()
    }


def run_roles(broker: RunningBroker, d: int) -> Part:
    """Run both roles over the windows; the epochs of an hour are opened before, as in life."""
    log = KafkaSettings((broker.bootstrap,), prefix=f"scale-{uuid.uuid4().hex[:8]}.")
    (fleet, before, hour), written = hour_of_reports(d), HourLog(log)
    written.write(before)
    with TemporaryDirectory(prefix="plst-") as folder:
        asked = Round(Path(folder), log, RunningClock(NOW_S))
        asked.prepare(make_task(HOSTS, d)[2], make_roster(fleet, [d]))
        with parties(asked, broker) as running:
            wait_for("the window before", partial(asked.released, 1))
            waiting = cpu_s(running)
            written.write(hour[:HOSTS])
            wait_for("the hour's epochs", partial(asked.epochs_open, 2 * HOSTS))
            written.write(hour[HOSTS : 2 * HOSTS])
            wait_for("the hour's first window", partial(asked.released, 2))
            asked.hold.touch()
            written.write(hour[2 * HOSTS :])
            opened, begun_s = cpu_s(running), time.monotonic()
            asked.hold.unlink()
            wait_for("all windows", partial(asked.released, 2 + WINDOWS))
            ended = cpu_s(running)
        last_s = max(map(float, (asked.folder / "released").read_text().split()))
    n = len(hour) - 2 * HOSTS
    us = {role: (ended[role] - opened[role]) / n * 1e6 for role in ROLES}
    epoch_us = [max(0.0, (opened[r] - waiting[r]) / HOSTS * 1e6 - us[r]) for r in ROLES[:2]]
    epochs_s = sum(epoch_us) / 1e6 * n * EPOCHS_A_WINDOW
    return {
        "d": d, "bare": written.bare_rate(n), "rate": n / (last_s - begun_s + epochs_s),
        "epoch_us": max(epoch_us), **{f"{role}_us": used for role, used in us.items()},
    }  # fmt: skip


def measured(kept: Parts, runs: Mapping[str, int]) -> dict[str, Part]:
    """Run both roles at some widths, by the part's name, on one broker."""
    options = BrokerOptions(heap_mib=1024, quick=False)
    found = {}
    with TemporaryDirectory() as folder, LocalBroker(Path(folder) / "kafka", options) as broker:
        running = broker.start(print)
        for name, d in runs.items():
            found[name] = kept.get(name, partial(run_roles, running, d))
            hour_of_reports.cache_clear()
    return found


def shipped_d() -> int:
    plan = default_plan()
    minute = next(task for task in plan.tasks if task.window_s == WINDOW_S)
    keys = LEADER.public_bytes, HELPER.public_bytes
    return build_task(
        Catalogue.load(), task_plan(plan, minute, windows_from(minute, T0, 1), keys)
    ).d


def rates(kept: Parts) -> Measured:
    """Give reports a second through both roles, at a thousand words and at the shipped plan's."""
    widths = {"d1000": D, "shipped": shipped_d()}
    found, figures = measured(kept, widths), []
    for width, named in {"d1000": "d1000", "shipped": "shipped_plan"}.items():
        part, least = found[width], HOSTS / floor(HOSTS, widths[width])
        rate, ratio = part["rate"], part["rate"] / part["bare"]
        unit = "reports/s, both roles and the broker, epochs included"
        name = f"reports_per_second_2cores_both_roles_{named}"
        figures.append(Figure(name, rate, unit, floor=least))
        if width == "d1000":
            figures.append(Figure("ratio_to_plain_reader", ratio, "ratio", 0.5))
        else:
            figures.append(Figure("reports_of_the_shipped_plan_in_60_s", rate * 60, "reports", 1e5))
            figures.append(Figure("ratio_to_plain_reader_shipped_plan", ratio, "ratio"))
        figures.append(
            Figure(f"plain_reader_reports_per_second_{named}", part["bare"], "reports/s")
        )
    return Measured(figures)


def sizing(kept: Parts) -> Measured:
    """Fit what a report costs at two widths, and hold it against the shipped plan's."""
    shipped = shipped_d()
    kinds = {"shipped": shipped} | {f"d{d}": d for d in WIDTHS}
    runs = {f"sizing_{kind}_turn_{turn}": d for turn in range(TURNS) for kind, d in kinds.items()}
    parts = measured(kept, {"sizing_warm": WIDTHS[0], **runs})
    turns = {kind: [parts[f"sizing_{kind}_turn_{n}"] for n in range(TURNS)] for kind in kinds}
    found = {
        kind: {key: min(turn[key] for turn in of) for key in of[0]} for kind, of in turns.items()
    }
    lines = [found[f"d{d}"] for d in WIDTHS]
    slopes = {role: fit([(part["d"], part[f"{role}_us"]) for part in lines]) for role in ROLES}
    costs = Costs(**slopes, epoch_us=statistics.mean(part["epoch_us"] for part in lines))
    check = found["shipped"]
    off = {role: (slopes[role].of(shipped) / check[f"{role}_us"] - 1) * 100 for role in ROLES}
    if kept.writes:
        COSTS_FILE.write_text(json.dumps(costs_document(costs, off), indent=2) + "\n")
    dearest = [[turn["leader_us"] for turn in of] for of in turns.values()]
    spreads = [(max(of) / min(of) - 1) * 100 for of in dearest]
    unit = "%, dearest over least run"
    figures = [
        Figure("sizing_spread_percent", statistics.median(spreads), unit),
        Figure("sizing_spread_percent_worst", max(spreads), unit),
    ]
    for role, cost in slopes.items():
        figures += [
            Figure(f"sizing_{role}_report_us_one_process", cost.report_us, "core-us a report"),
            Figure(f"sizing_{role}_word_ns_one_process", cost.word_us * 1e3, "core-ns a word"),
        ]
    figures.append(Figure("sizing_epoch_us_one_process", costs.epoch_us, "core-us an epoch"))
    figures += [
        Figure(f"sizing_error_percent_{role}", error, f"%, d = {shipped}")
        for role, error in off.items()
    ]
    for name, hosts in FLEETS.items():
        size = size_of(hosts, [TaskLoad(shipped, WINDOW_S)], costs)
        figures += [Figure(f"sizing_{name}_{k}", v, SIZE_UNITS[k]) for k, v in asdict(size).items()]
    return Measured(figures)


def costs_document(costs: Costs, off: Mapping[str, float]) -> dict[str, Any]:
    """What `pointillist size` ships with."""
    date, command = datetime.now(UTC).strftime("%Y-%m-%d"), "make bench-scale ARGS='--part sizing'"
    source = {"date": date, "commit": commit(), "device": device(), "command": command}
    return {"source": source, "one": asdict(costs), "error_percent": dict(off)}
