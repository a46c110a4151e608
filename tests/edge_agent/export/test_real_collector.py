"""OpenTelemetry's own collector takes what an agent sends, and may be killed at any time."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from collectors.devices.device_port import DeviceReading, Field
from edge_agent.config import OtlpSection
from edge_agent.export.host_numbers import FamilyRow, GpuNow, HostSnapshot, HostWorkload
from edge_agent.export.otlp import MessageWriter, OtlpSender
from tests.export_kit import JOB, POD
from tests.monitoring_kit import DEPLOY, free_port
from tests.wait_kit import until

PROGRAM = Path(__file__).resolve().parents[3] / ".tools" / "otelcol" / "otelcol"
SAMPLE = DEPLOY / "otel" / "collector.yaml"
YEAR_2026_S = 1_767_225_600

pytestmark = [
    pytest.mark.release,
    pytest.mark.skipif(not PROGRAM.exists(), reason="make otel-collector builds it, with Go"),
]


def snapshot(second: int) -> HostSnapshot:
    fields = {Field.UTILISATION: 93, Field.MEMORY_USED: 3 << 30, Field.PCIE_REPLAYS: second}
    gpu = GpuNow(DeviceReading(0, "GPU-1", "H100", 0, 1, fields), HostWorkload(JOB, POD), ())
    row = FamilyRow(HostWorkload(JOB, POD), "gemm", 1000.0 + second, None, 1.5 + second, 0.25)
    return HostSnapshot((YEAR_2026_S + second) * 10**9, (gpu,), (row,))


@contextmanager
def running(folder: Path, port: int, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run the deployed configuration on a port of the test's own, without its own counters."""
    config = yaml.safe_load(SAMPLE.read_text())
    config["receivers"]["otlp"]["protocols"]["http"]["endpoint"] = f"127.0.0.1:{port}"
    config["service"]["telemetry"] = {"metrics": {"level": "none"}}
    file = folder / "collector.yaml"
    file.write_text(yaml.safe_dump(config))
    with log.open("ab") as out:
        process = subprocess.Popen([PROGRAM, f"--config={file}"], stdout=out, stderr=out)
    try:
        yield process
    finally:
        process.kill()
        process.wait(30)


def test_deployed_configuration_is_accepted() -> None:
    done = subprocess.run(
        [PROGRAM, "validate", f"--config={SAMPLE}"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_collector_has_every_number_with_its_time_over_a_kill(tmp_path: Path) -> None:
    port, log = free_port(), tmp_path / "log"
    settings = OtlpSection(True, f"http://127.0.0.1:{port}")
    sender = OtlpSender(settings, MessageWriter({"host.name": "node7"}, "1"))
    try:
        for life in range(2):
            with running(tmp_path, port, log):
                for second in range(10 * life, 10 * life + 5):
                    sender.offer(snapshot(second))
                until(lambda: sender.counts.get("sent", 0) >= 10 * life + 5)  # noqa: B023
            for second in range(10 * life + 5, 10 * life + 10):
                sender.offer(snapshot(second))
        with running(tmp_path, port, log):
            until(lambda: sender.counts.get("sent") == 20)
            until(lambda: len(shown(log)) == 20)
    finally:
        sender.close()
    text = log.read_text()
    assert sender.counts == {"sent": 20}
    assert shown(log) == [float(second) for second in range(20)]
    for said in (
        "hw.gpu.utilization", "Value: 0.930000", "Unit: By", "slurm.job.id: Str(778)",
        f"k8s.pod.uid: Str({POD})", "pointillist.kernel.family: Str(gemm)", "IsMonotonic: true",
        "AggregationTemporality: Cumulative", "host.name: Str(node7)", "2026-01-01 00:00:19",
    ):  # fmt: skip
        assert said in text, said


def shown(log: Path) -> list[float]:
    """Give the values of hw.errors that the collector printed, in its order."""
    parts = re.split(r"-> Name: ", log.read_text(encoding="utf-8"))
    return [
        float(value)
        for part in parts
        if part.startswith("hw.errors")
        for value in re.findall(r"^Value: (\d+)", part, re.MULTILINE)
    ]
