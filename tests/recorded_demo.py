"""The command `pointillist`, whose demo plays its hosts through `tests.recording_slice`.

Before the log goes, what a reader of the topic of releases is given is written down as well.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from pointillist.cli import main
from pointillist.play import demo_summary
from pointillist.play.demo_fleet import DemoFleet
from pointillist.play.demo_tally import DemoTally
from pointillist.play.processes import Family, RoleProcess
from tests.recording_slice import FILE
from transport.factory import Side, TransportTable, open_transport
from transport.kafka.kafka_frame import KafkaSettings
from wire.envelope import unwrap
from wire.topics import RELEASES

_start, _summarise = Family.start, demo_summary.summarise


def _recorded(self: Family, name: str, *module: str) -> RoleProcess:
    if module[0] == "simulator.slices":
        module = ("tests.recording_slice", *module[1:])
    return _start(self, name, *module)


def _read_releases(fleet: DemoFleet, tally: DemoTally) -> dict[str, Any]:
    broker, folders = fleet.plan.kafka, fleet.folders
    table = (
        TransportTable(kafka=KafkaSettings((broker,)))
        if broker
        else TransportTable(folders.log, folders.log_group)
    )
    with open_transport(table.settings, Side.AGENT) as log:
        consumer = log.consumer("reader-1", [RELEASES])
        cores = [unwrap(record.value, 1 << 10)[1] for record in consumer.poll(100, 1.0)]
        consumer.close()
    Path(f"{os.environ[FILE]}.releases").write_text(
        "\n".join(core.hex() for core in cores), encoding="utf-8"
    )
    return _summarise(fleet, tally)


if __name__ == "__main__":
    Family.start = _recorded  # type: ignore[method-assign]
    demo_summary.summarise = _read_releases
    main()
