"""`make bench-scale`: reports a second through both roles on one machine, by number of workers.

A broker, a Leader, a Helper and their workers share the machine's cores. Windows of a whole fleet
lie on the log beforehand; a rate is that from the first release to the last, so that joining the
group and opening the epochs is told apart. Beside it a bare consumer reads the same records, and
NumPy adds as many vectors twice. Each part is kept in bench/.cache as it ends.
"""

from __future__ import annotations

import argparse
import multiprocessing
import signal
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import numpy as np

from aggregator.channel import prepare_socket_folder
from aggregator.helper_shell import HelperShell
from aggregator.key_ring import DAY_S
from aggregator.leader_shell import LeaderShell
from aggregator.party_config import HelperAddress, HelperConfig, LeaderConfig
from aggregator.party_processes import mask_pool_of
from aggregator.released import MemoryStore, ReleasedWindow
from aggregator.tasks import build_task, task_plan, windows_from
from aggregator.workers.children import Children, Nursery, kept
from aggregator.workers.coordinator_shell import CoordinatorShell
from aggregator.workers.leader_processes import WorkerJob, job_of
from aggregator.workers.worker_channel import CoordinatorChannel, serve_workers
from aggregator.workers.worker_shell import WorkerShell
from bench.kafka import bare_rate, fill
from bench.parts import Part, Parts
from bench.record import CACHE, Figure, commit, write_result
from bench.round_fleet import (
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
from pointillist.broker.local import BrokerOptions, LocalBroker
from pointillist.plan_file import default_plan
from transport.kafka_settings import KafkaSettings
from transport.keyfiles import HpkeKeyFile, write_hpke_key, write_signing_key
from transport.opening import Side, open_transport
from wire.catalogue import Catalogue
from wire.envelope import Kind, wrap
from wire.topics import EPOCHS

HOSTS: Final = 4000
WINDOWS: Final = 5
D: Final = 1000
WORKERS: Final = (0, 1, 2, 4)
COMMAND: Final = "make bench-scale"
PATIENCE_S: Final = 300.0
SPAWN: Final = multiprocessing.get_context("spawn")


class RunningClock:
    """The machine's clock, moved so that it stands at a moment of the fleet when it is made."""

    def __init__(self, now_s: float) -> None:
        self._ahead_s = now_s - time.time()

    def __call__(self) -> float:
        """Give unix seconds."""
        return time.time() + self._ahead_s


class NotingStore(MemoryStore):
    """Notes when each window was released, in seconds that all processes share."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    def write(self, release: ReleasedWindow) -> None:
        """Note the moment; the numbers are not kept."""
        with self._path.open("a") as file:
            file.write(f"{time.monotonic()} {release.n}\n")


@dataclass(frozen=True, slots=True)
class Round:
    """One way to run both roles over one log."""

    folder: Path
    log: KafkaSettings
    workers: int
    clock: RunningClock

    @property
    def helper_socket(self) -> HelperAddress:
        """Where the Helper listens."""
        return HelperAddress(self.folder / "run" / "helper")

    @property
    def leader(self) -> LeaderConfig:
        """The Leader's configuration."""
        return LeaderConfig(
            key_dir=self.folder / "leader-keys",
            state_dir=self.folder / "leader",
            signed_dir=self.folder / "signed",
            helper_pk=HELPER.public_bytes,
            user="",
            transport=self.log,
            helper=self.helper_socket,
            database=self.folder / "none.duckdb",
            releases_dir=self.folder,
            catalogue=None,
            status_file=self.folder / "leader.json",
        )

    @property
    def helper(self) -> HelperConfig:
        """The Helper's configuration."""
        return HelperConfig(
            key_dir=self.folder / "helper-keys",
            state_dir=self.folder / "helper",
            fence_file=self.folder / "helper.fence",
            signed_dir=self.folder / "signed",
            leader_pk=LEADER.public_bytes,
            user="",
            address=self.helper_socket,
            peer_group=None,
            status_file=self.folder / "helper.json",
        )


def run_helper(asked: Round) -> None:
    """What the Helper's process does."""
    workers = asked.workers or None
    nursery = None if workers is None else Nursery()
    maker = mask_pool_of(nursery, workers, asked.helper.key_dir)
    shell = HelperShell(asked.helper, clock=asked.clock, mask_maker=maker)
    signal.signal(signal.SIGTERM, lambda *_: shell.stop())
    shell.run()


def run_leader(asked: Round) -> None:
    """What the Leader's process does."""
    nursery = Nursery()
    store = NotingStore(asked.folder / "released")
    with open_transport(asked.log, Side.AGGREGATOR) as log:
        kind = CoordinatorShell if asked.workers else LeaderShell
        shell = kind(asked.leader, log, store, clock=asked.clock)
        signal.signal(signal.SIGTERM, lambda *_: shell.stop())
        if not isinstance(shell, CoordinatorShell):
            shell.run()
            return
        job = job_of(asked.leader, LEADER.public_bytes)
        assert job.coordinator.socket is not None
        prepare_socket_folder(job.coordinator.socket, None, None)
        server = serve_workers(shell.desk, job.coordinator)
        with kept(Children(nursery, asked.workers, work, (job, asked.clock))):
            shell.run()
        server.stop(None).wait()


def work(pipe: Connection, job: WorkerJob, clock: RunningClock) -> None:
    """What a worker's process does, by the fleet's clock."""
    with open_transport(job.transport, Side.AGGREGATOR) as log:
        shell = WorkerShell(log, CoordinatorChannel(job.coordinator), job.parties, clock=clock)
        while not pipe.poll():
            shell.turn()


def prepare(fleet: Fleet, d: int, asked: Round, windows: int) -> None:
    """Write keys, task and roster, and put epochs and every window's reports on the log."""
    task_id, task, signed_task = make_task(len(fleet.hosts), d)
    (asked.folder / "signed").mkdir()
    (asked.folder / "signed" / "bench.task").write_bytes(signed_task)
    (asked.folder / "signed" / "bench.roster").write_bytes(make_roster(fleet, [d]))
    for name, key, pair in (("leader", LEADER, LEADER_BOX), ("helper", HELPER, HELPER_BOX)):
        folder = asked.folder / f"{name}-keys"
        folder.mkdir(mode=0o700)
        write_signing_key(folder / "identity.key", key)
        start = T0 // DAY_S * DAY_S
        day = time.strftime("%Y-%m-%d", time.gmtime(start))
        write_hpke_key(folder / f"{day}.hpke", HpkeKeyFile(pair, start, start + DAY_S + 3900))
    prepare_socket_folder(asked.folder / "run" / "helper", None, None)
    total = np.zeros(d, dtype=np.int64)
    fill(asked.log, [])
    with open_transport(asked.log, Side.AGGREGATOR) as kafka:
        producer = kafka.producer()
        for raw in fleet.raw:
            producer.send(EPOCHS, raw[16:48], wrap(Kind.EPOCH, raw))
        producer.close()
    for number in range(windows):
        chunks = sealed_chunks(fleet, task_id, task, T0 + number * WINDOW_S, total)
        for chunk in chunks:
            fill(asked.log, [record.value for record in chunk])


def released_at(folder: Path) -> list[float]:
    """When windows were released, in their order."""
    path = folder / "released"
    lines = path.read_text().splitlines() if path.exists() else []
    return sorted(float(line.split()[0]) for line in lines)


def measure(bootstrap: str, hosts: int, d: int, workers: int, windows: int) -> Part:
    """Run both roles with so many workers each; none: one process each."""
    fleet = load_fleet(hosts, CACHE / "scale-fleet", part=500)
    name = f"scale-{d}-{workers}-{int(time.time())}."
    log = KafkaSettings((bootstrap,), prefix=name)
    with TemporaryDirectory(prefix="plst-") as folder:
        clock = RunningClock(T0 + windows * WINDOW_S + 2)
        asked = Round(Path(folder), log, workers, clock)
        prepare(fleet, d, asked, windows)
        bare = bare_rate(log, hosts * windows)[0]
        parties = [SPAWN.Process(target=run, args=(asked,)) for run in (run_helper, run_leader)]
        begun_s = time.monotonic()
        for party in parties:
            party.start()
        while len(at_s := released_at(asked.folder)) < windows:
            time.sleep(0.05)
            late = time.monotonic() - begun_s > PATIENCE_S
            if late or not all(party.is_alive() for party in parties):
                raise RuntimeError(f"expected {windows} releases, got {len(at_s)}")
        for party in parties:
            party.terminate()
            party.join(20)
    rate = hosts * (windows - 1) / (at_s[-1] - at_s[0])
    return {"rate": rate, "bare": bare, "first_s": at_s[0] - begun_s, "workers": workers, "d": d}


def shipped_d() -> int:
    """Words of the shipped plan's minute task."""
    plan = default_plan()
    minute = next(task for task in plan.tasks if task.window_s == WINDOW_S)
    keys = LEADER.public_bytes, HELPER.public_bytes
    return build_task(
        Catalogue.load(), task_plan(plan, minute, windows_from(minute, T0, 1), keys)
    ).d


def figures(parts: Mapping[str, Part], floor_rate: float) -> list[Figure]:
    """Name what the parts say."""
    wide = [part for name, part in parts.items() if name.startswith("d1000")]
    best = max(wide, key=lambda part: part["rate"])
    bare = statistics.median(part["bare"] for part in wide)
    unit = "reports/s, both roles and the broker"
    found = [
        Figure("reports_per_second_2cores_both_roles_d1000", best["rate"], unit, floor=floor_rate),
        Figure("ratio_to_plain_reader", best["rate"] / bare, "ratio", 0.5),
        Figure("plain_reader_reports_per_second_d1000", bare, "reports/s"),
        Figure("workers_of_the_best", best["workers"], "workers of each role"),
    ]
    for name, part in parts.items():
        found.append(Figure(f"reports_per_second_{name}", part["rate"], unit))
        found.append(Figure(f"first_release_s_{name}", part["first_s"], "s, epochs included"))
    shipped = [part for name, part in parts.items() if name.startswith("shipped")]
    if shipped:
        rate = max(part["rate"] for part in shipped)
        found.append(Figure("reports_per_second_2cores_both_roles_shipped_plan", rate, unit))
    return found


def main() -> None:
    """Measure, print, write bench/results/scale.json."""
    parser = argparse.ArgumentParser(prog="bench.scale", description=__doc__)
    parser.add_argument("--hosts", type=int, default=HOSTS)
    parser.add_argument("--windows", type=int, default=WINDOWS)
    parser.add_argument("--workers", type=int, nargs="*", default=WORKERS, help="0: one process")
    parser.add_argument("--fresh", action="store_true", help="measure all parts again")
    parser.add_argument("--try", dest="trial", action="store_true", help="write no result")
    asked = parser.parse_args()
    parts = Parts(CACHE / f"scale-{commit()[:12]}-{asked.hosts}", asked.fresh)
    found: dict[str, Part] = {}
    options = BrokerOptions(heap_mib=1024, quick=False)
    with TemporaryDirectory() as folder, LocalBroker(Path(folder) / "kafka", options) as broker:
        bootstrap = broker.start(print).bootstrap
        for label, d in (("d1000", D), ("shipped", shipped_d())):
            for workers in asked.workers:
                name = f"{label}_workers_{workers}"
                run = partial(measure, bootstrap, asked.hosts, d, workers, asked.windows)
                found[name] = parts.get(name, run)
    result = figures(found, asked.hosts / floor(asked.hosts, D))
    for figure in result:
        print(f"{figure.name:52} {figure.value:12.3f} {figure.unit}")
    if not asked.trial:
        write_result("scale", COMMAND, result)


if __name__ == "__main__":
    main()
