"""What both roles carry where Spark reads the Leader's reports, on local[2].

Windows of a whole fleet lie on the log beforehand, and a batch takes as many reports as a window
has; the rate is that from the first release to the last, so that Spark's start, the epochs and the
first batch are told apart. Broker, Helper, coordinator, driver and executors share the cores.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from aggregator.party.spark_settings import SparkSettings
from aggregator.spark.spark_processes import SparkJob, python_of, spark_job
from aggregator.workers.children import ForkServer
from aggregator.workers.coordinator_shell import CoordinatorShell
from aggregator.workers.leader_processes import working
from bench.kafka import bare_rate
from bench.parts import Measured, Part, Parts
from bench.record import CACHE, ROOT, Figure
from bench.round_fleet import LEADER, T0, WINDOW_S, load_fleet, make_roster, make_task
from bench.scale_hour import HourLog, sealed
from bench.scale_rates import D
from bench.scale_roles import (
    SPAWN,
    NotingStore,
    Round,
    RunningClock,
    prepare,
    released,
    run_helper,
)
from pointillist.broker.local import BrokerOptions, LocalBroker
from transport.kafka.kafka_settings import KafkaSettings
from transport.opening import Side, open_transport

HOSTS: Final = 4000
WINDOWS: Final = 6
PATIENCE_S: Final = 400.0
SETTINGS: Final = SparkSettings(
    master="local[2]", batch_records=HOSTS, options={"spark.driver.memory": "1g"}
)


def run_coordinator(asked: Round) -> None:
    """What the Leader's own process does."""
    fork_server = ForkServer()
    with open_transport(asked.log, Side.AGGREGATOR) as log:
        store = NotingStore(asked.folder / "released")
        shell = CoordinatorShell(asked.leader, log, store, clock=asked.clock)
        signal.signal(signal.SIGTERM, lambda *_: shell.stop())
        with working(fork_server, shell, asked.leader, 0):
            shell.run()
    fork_server.close()


def begin_driver(asked: Round, job: SparkJob) -> subprocess.Popen[bytes]:
    """Begin the driver, by the fleet's clock."""
    told = asked.folder / "job"
    told.write_bytes(pickle.dumps((job, asked.clock() - time.time())))
    command = [str(python_of(SETTINGS)), "-m", "bench.spark_driver", str(told)]
    return subprocess.Popen(command, cwd=asked.folder, env=os.environ | {"PYTHONPATH": str(ROOT)})


def run_roles(bootstrap: str, hosts: int, d: int, windows: int) -> Part:
    """Run Helper, coordinator and Spark over one log."""
    fleet = load_fleet(hosts, CACHE / "scale-fleet", part=500)
    log = KafkaSettings((bootstrap,), prefix=f"scale-spark-{int(time.time())}.")
    with TemporaryDirectory(prefix="plst-") as name:
        folder, clock = Path(name), RunningClock(T0 + windows * WINDOW_S + 2)
        asked = Round(folder, log, 0, clock)
        prepare(make_task(hosts, d)[2], make_roster(fleet, [d]), asked)
        HourLog(log).write(sealed(fleet, d, [T0 + at * WINDOW_S for at in range(windows)]))
        bare = bare_rate(log, hosts * windows)[0]
        parties = [
            SPAWN.Process(target=run, args=(asked,)) for run in (run_helper, run_coordinator)
        ]
        begun_s = time.monotonic()
        for party in parties:
            party.start()
        job = spark_job(replace(asked.leader, spark=SETTINGS), LEADER.public_bytes)
        driver = begin_driver(asked, job)
        try:
            while len(found := released(folder)) < windows:
                time.sleep(0.05)
                late = time.monotonic() - begun_s > PATIENCE_S
                if late or driver.poll() is not None or not all(p.is_alive() for p in parties):
                    raise RuntimeError(f"expected {windows} releases, got {len(found)}")
        finally:
            driver.terminate()
            driver.wait(60)
            for party in parties:
                party.terminate()
                party.join(20)
    first_s, last_s = found[0].at_s, found[-1].at_s
    after_first = sum(release.at_s > first_s for release in found)
    rate = hosts * after_first / (last_s - first_s)
    return {"rate": rate, "bare": bare, "first_s": first_s - begun_s, "d": d}


def measure(kept: Parts) -> Measured:
    """Measure at d = 1,000."""
    options = BrokerOptions(heap_mib=1024, quick=False)
    with TemporaryDirectory() as folder, LocalBroker(Path(folder) / "kafka", options) as broker:
        run = partial(run_roles, broker.start(print).bootstrap, HOSTS, D, WINDOWS)
        found = kept.get("spark_local2", run)
    unit = f"reports/s, both roles and the broker, batches of {HOSTS}"
    return Measured(
        [
            Figure("spark_reports_per_second_local2", found["rate"], unit),
            Figure("spark_first_release_s", found["first_s"], "s, Spark's start included"),
            Figure("spark_ratio_to_plain_reader", found["rate"] / found["bare"], "ratio"),
        ]
    )
