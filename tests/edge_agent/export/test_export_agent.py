"""An agent that exports: from the driver to a collector and to Debian's Prometheus."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from collectors.boot_clock import boottime_ns
from collectors.devices.bounded import BoundedReader
from collectors.devices.devices_source import DevicesSource
from collectors.interface import Source
from collectors.rounds import Drained, Rounds
from edge_agent.agent_runtime import Observer
from edge_agent.config import ExportSection, OtlpSection, ScrapeSection, load_config
from edge_agent.export.host_export import HostExport
from edge_agent.export.host_numbers import HostNumbers
from edge_agent.export.scrape import NAMES
from edge_agent.service.agent_service import AgentService
from tests.agent_live import SteppedClock, run_until, surroundings
from tests.agent_world import T0
from tests.calls_kit import gpu_calls
from tests.export_kit import CONTAINER, IN_JOB, IN_POD, JOB, POD, MadeProc, collector
from tests.fake_nvml_kit import FakeDriver
from tests.monitoring_kit import DEPLOY, Prometheus, answered, free_port, missing_monitors, monitor
from tests.wait_kit import until

SCRAPE = DEPLOY / "prometheus" / "host-gpus.yml"
COLLECTOR = DEPLOY / "otel" / "collector.yaml"
GPU_0 = "GPU-00000000-0000-0000-0000-000000000000"


@dataclass
class Exporting:
    """A host of two GPUs: a batch job on the first, a pod on the second."""

    export: HostExport
    rounds: Rounds

    def drain(self) -> None:
        now_ns = boottime_ns()
        for drained in self.rounds.round(now_ns):
            self.export.drained(drained, now_ns)
        self.export.drained(Drained("probes", (gpu_calls(now_ns),)), now_ns)


@pytest.fixture
def host(tmp_path: Path) -> Iterator[tuple[Exporting, str]]:
    proc = MadeProc(tmp_path / "proc")
    proc.add(7, IN_JOB)
    proc.add(8, IN_POD)
    driver = FakeDriver(tmp_path)
    driver.play(
        "gpus 2",
        "0 nvmlDeviceGetUtilizationRates value 93 40",
        "0 nvmlDeviceGetPowerUsage value 412345",
        f"0 nvmlDeviceGetComputeRunningProcesses_v3 value 7 {3 << 30}",
        f"1 nvmlDeviceGetComputeRunningProcesses_v3 value 8 {1 << 30}",
    )
    source: Source = DevicesSource([BoundedReader(driver.reader, deadline_s=20)])
    source.start()
    with collector() as (made, address):
        settings = ExportSection(ScrapeSection(True, 0), OtlpSection(True, address, every_s=1))
        export = HostExport(
            settings, version="1", hostname="node7", numbers=HostNumbers(str(proc.path))
        )
        exporting = Exporting(export, Rounds([source]))
        exporting.drain()
        export.stepped(1_000)
        until(lambda: made.taken)
        yield exporting, str(made.series())
        export.stopping()
        exporting.rounds.stop()


def test_driver_to_collector_and_scrape_say_the_same(host: tuple[Exporting, str]) -> None:
    exporting, taken = host
    text = answered(f"http://127.0.0.1:{exporting.export.port}/metrics")
    labels = f'device="nvidia0",gpu="0",hpc_job="{JOB}",modelName="NVIDIA H100 80GB HBM3"'
    whole = f'{{Hostname="node7",UUID="{GPU_0}",{labels}}}'
    assert f"DCGM_FI_DEV_GPU_UTIL{whole} 93.0" in text
    assert f"DCGM_FI_DEV_POWER_USAGE{whole} 412.345" in text
    assert f"pointillist_gpu_workload_memory_bytes{whole} {3 << 30}.0" in text.replace(
        "3.221225472e+09", f"{3 << 30}.0"
    )
    for said in (POD, CONTAINER, JOB, "hw.gpu.utilization", "0.93", "412.345", "attention"):
        assert said in taken
    assert exporting.export.counts == {"sent": 1}


def test_fake_driver_answers_every_exported_field(host: tuple[Exporting, str]) -> None:
    told = set(host[0].export.snapshot().gpus[0].reading.values)
    assert {str(kind) for kind in set(NAMES) - told} <= {"fan_percent"}  # an SXM board has none


@pytest.mark.prometheus
@pytest.mark.release
def test_prometheus_scrapes_by_the_deployed_configuration(
    host: tuple[Exporting, str], tmp_path: Path
) -> None:
    assert not missing_monitors()
    exporting, _ = host
    text = answered(f"http://127.0.0.1:{exporting.export.port}/metrics")
    checked = subprocess.run(
        ["promtool", "check", "metrics"], input=text, capture_output=True, text=True, check=False
    )
    said = checked.stdout + checked.stderr
    theirs = ("DCGM_FI_", "pointillist_gpu_workload_memory_bytes label names")
    complaints = [line for line in said.splitlines() if not line.startswith(theirs)]
    assert complaints == [], "names and labels of DCGM are DCGM's; ours and the format are sound"
    config = yaml.safe_load(SCRAPE.read_text())
    (job,) = config["scrape_configs"]
    assert job["static_configs"] == [{"targets": ["127.0.0.1:9470"]}]
    job["static_configs"] = [{"targets": [f"127.0.0.1:{exporting.export.port}"]}]
    config["global"]["scrape_interval"] = "1s"
    folder = tmp_path / "prometheus"
    folder.mkdir()
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    command = ["promtool", "check", "config", "prometheus.yml"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    options = ("--config.file=prometheus.yml", f"--storage.tsdb.path={folder / 'data'}")
    with monitor("prometheus", folder, free_port(), *options) as address:
        prometheus = Prometheus(address)
        until(lambda: prometheus.ask(f'DCGM_FI_DEV_GPU_UTIL{{hpc_job="{JOB}"}} == 93'))
        assert prometheus.ask(f'DCGM_FI_DEV_FB_USED{{pod_uid="{POD}"}} > 0')
        assert prometheus.ask('pointillist_gpu_kernel_launches_total{family="gemm"} == 1000')


def test_deployed_collector_takes_what_the_sample_agent_sends() -> None:
    config = yaml.safe_load(COLLECTOR.read_text())
    endpoint = config["receivers"]["otlp"]["protocols"]["http"]["endpoint"]
    assert load_config(Path("deploy/config/agent.toml")).export.otlp.endpoint.endswith(endpoint)
    pipeline = config["service"]["pipelines"]["metrics"]
    assert pipeline["receivers"] == ["otlp"]
    assert set(pipeline["exporters"]) <= set(config["exporters"])
    assert re.match(r"127\.0\.0\.1:\d+$", endpoint)


def test_an_agent_whose_collector_is_away_and_whose_export_breaks_reports_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = surroundings(tmp_path)
    clock = SteppedClock(T0)
    runtime = made.agent(clock)
    settings = ExportSection(
        otlp=OtlpSection(True, f"http://127.0.0.1:{free_port()}", every_s=1, most_waiting=2)
    )
    export = HostExport(settings, clock=clock)
    monkeypatch.setattr(HostNumbers, "take", _broken)
    service = AgentService(runtime, made.config, clock=clock, exported=lambda: export.counts)
    runtime.observe(service, export)
    run_until(runtime, clock, T0 + 12)
    export.drained(Drained("devices", ()), clock.boottime_ns())
    runtime.close()
    assert runtime.tally.published > 0
    assert export.counts["crowded_out"] > 0
    status = service.self_status()
    assert status is not None
    assert status.exported["crowded_out"] > 0
    said = capsys.readouterr()
    assert "a user's secret name" not in said.out + said.err


def _broken(*_arguments: object) -> None:
    raise RuntimeError("a user's secret name")


def test_observers_are_told_everything_in_order(tmp_path: Path) -> None:
    told: list[tuple[str, str]] = []

    class Noting(Observer):
        def __init__(self, name: str) -> None:
            self.name = name

        def __getattribute__(self, called: str) -> object:
            if called in {"started", "drained", "diagnosed", "closed", "stepped", "stopping"}:
                name = object.__getattribute__(self, "name")
                return lambda *_: told.append((called, name))
            return object.__getattribute__(self, called)

    clock = SteppedClock(T0)
    runtime = surroundings(tmp_path).agent(clock)
    runtime.observe(Noting("a"), Noting("b"))
    run_until(runtime, clock, T0 + 6)
    runtime.close()
    names = [called for called, _ in told[::2]]
    assert (names[0], names[-1]) == ("started", "stopping")
    assert {"closed", "stepped"} <= set(names)
    assert told == [(name, who) for name in names for who in ("a", "b")]
