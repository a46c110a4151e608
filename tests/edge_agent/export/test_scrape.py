"""Scrapes of this host's numbers: DCGM's names, whose they are, and nobody else's eyes."""

from __future__ import annotations

import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from wsgiref.util import setup_testing_defaults

import pytest
from prometheus_client import make_wsgi_app
from prometheus_client.registry import CollectorRegistry

from collectors.devices.device_port import AMD, DeviceReading, Field
from edge_agent.export.host_numbers import (
    NO_WORKLOAD,
    FamilyRow,
    GpuNow,
    HostSnapshot,
    HostWorkload,
)
from edge_agent.export.scrape import (
    HostCollector,
    ReaderGuard,
    scrape_port,
    users_of_scrape,
)
from tests.export_kit import CONTAINER, JOB, POD
from transport.process.listening import LOOPBACKS
from transport.process.supervision import MetricsServer

HOSTILE = 'H100"} 1\n# TYPE evil counter\\'
BATCH, PODDED = HostWorkload(JOB), HostWorkload("", POD, CONTAINER)


def gpu(
    index: int, fields: dict[Field, int], workload: HostWorkload, model: str = "H100"
) -> GpuNow:
    reading = DeviceReading(index, f"GPU-{index}", model, 0, 1, fields)
    return GpuNow(reading, workload, ((workload, 1 << 30),))


def snapshot() -> HostSnapshot:
    shared = {Field.UTILISATION: 93, Field.POWER: 412_345, Field.PCIE_REPLAYS: 7}
    gpus = (gpu(0, shared, BATCH), gpu(1, {Field.POWER: 70_000}, PODDED, HOSTILE))
    return HostSnapshot(
        1, gpus, (FamilyRow(NO_WORKLOAD, "gemm", 12.0, 4.0, None, None, None, 3.0),)
    )


@pytest.fixture
def port() -> Iterator[MetricsServer]:
    users, _ = users_of_scrape(())
    made = scrape_port(0, users, snapshot, "node7")
    yield made
    made.close()


def scraped(port: int, host: str = LOOPBACKS[0]) -> str:
    request = urllib.request.Request(f"http://127.0.0.1:{port}/metrics")
    request.add_header("Host", f"{host}:{port}")
    with urllib.request.urlopen(request, timeout=20) as answer:
        return str(answer.read().decode())


def test_scrape_has_dcgm_names_with_its_labels(port: MetricsServer) -> None:
    lines = scraped(port.port).splitlines()
    whose = f'gpu="0",hpc_job="{JOB}",modelName="H100"'
    batch = f'{{Hostname="node7",UUID="GPU-0",device="nvidia0",{whose}}}'
    assert f"DCGM_FI_DEV_GPU_UTIL{batch} 93.0" in lines
    assert f"DCGM_FI_DEV_POWER_USAGE{batch} 412.345" in lines
    assert f"DCGM_FI_DEV_PCIE_REPLAY_COUNTER{batch} 7.0" in lines
    assert "# TYPE DCGM_FI_DEV_POWER_USAGE gauge" in lines
    assert 'pointillist_gpu_kernel_launches_total{Hostname="node7",family="gemm"} 12.0' in lines
    assert 'pointillist_gpu_kernel_launches_variance{Hostname="node7",family="gemm"} 4.0' in lines
    assert 'pointillist_gpu_kernel_launches_above{Hostname="node7",family="gemm"} 3.0' in lines
    assert not [line for line in lines if "launches_below" in line], "it is not known"
    assert not [line for line in lines if "seconds" in line], "nobody timed a kernel"
    (podded,) = [line for line in lines if line.startswith("DCGM") and 'gpu="1"' in line]
    assert f'pod_uid="{POD}"' in podded
    assert f'container_id="{CONTAINER}"' in podded
    assert "evil" not in "".join(line for line in lines if line.startswith("# TYPE"))


def test_a_gpu_of_another_vendor_has_no_name_of_dcgm() -> None:
    amd = gpu(0, {Field.POWER: 1_000}, NO_WORKLOAD)
    amd = replace(amd, reading=replace(amd.reading, vendor=AMD))
    found = list(HostCollector(lambda: HostSnapshot(1, (amd,), ()), "node7").collect())
    assert [family.name for family in found] == ["pointillist_gpu_workload_memory_bytes"]


def test_scrape_under_another_name_is_refused(port: MetricsServer) -> None:
    assert "DCGM" in scraped(port.port, "localhost")
    for name in ("evil.example.org", "127.0.0.1.example.org", ""):
        with pytest.raises(urllib.error.HTTPError) as refused:
            scraped(port.port, name)
        assert refused.value.code == 403


@pytest.mark.parametrize("owner", [12_345, None])
def test_scrape_of_another_user_or_of_nobody_known_is_refused(owner: int | None) -> None:
    registry = CollectorRegistry()
    registry.register(HostCollector(snapshot, "node7"))
    guard = ReaderGuard(make_wsgi_app(registry), frozenset({0, 1000}), lambda *_: owner)
    environ: dict[str, str] = {"HTTP_HOST": "127.0.0.1:9470", "REMOTE_PORT": "4711"}
    setup_testing_defaults(environ)
    environ["REMOTE_ADDR"] = environ["LOCAL_ADDR"] = LOOPBACKS[0]
    said: list[str] = []
    body = b"".join(guard(environ, lambda status, _headers: said.append(status)))  # type: ignore[arg-type]
    assert said == ["403 Forbidden"]
    assert b"DCGM" not in body


@pytest.mark.root
def test_scrape_is_answered_to_named_users_of_the_kernels_table() -> None:
    """A real second user asks over a real socket; only its name in `readers` lets it in."""
    code = (
        "import encodings.idna, os, sys, urllib.request, urllib.error\n"
        "os.setgid(65534); os.setuid(65534)\n"
        "try:\n"
        "    urllib.request.urlopen(f'http://127.0.0.1:{sys.argv[1]}/metrics', timeout=20)\n"
        "except urllib.error.HTTPError as error:\n"
        "    sys.exit(error.code == 403 and 43)\n"
    )
    for readers, code_wanted in (((), 43), (("nobody",), 0)):
        users, missing = users_of_scrape(readers)
        assert missing == ()
        port = scrape_port(0, users, snapshot, "node7")
        try:
            asked = [sys.executable, "-IS", "-c", code, str(port.port)]
            assert subprocess.run(asked, check=False).returncode == code_wanted
        finally:
            port.close()


def test_readers_that_are_no_users_are_told_and_left_out() -> None:
    users, missing = users_of_scrape(("root", "no-such-user-here"))
    assert users == {0, os.geteuid()}
    assert missing == ("no-such-user-here",)
