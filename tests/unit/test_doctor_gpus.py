"""The doctor on GPUs: those that the driver lists, beside those that agent.toml names."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from collectors.devices.device_port import DeviceReading, DevicesUnavailable
from edge_agent.config import HostSection
from edge_agent.service.doctor_gpus import ListedGpu, gpus_finding, listed_gpus
from tests.fake_nvml_kit import FakeDriver
from tests.fleet_kit import fleet_folder
from tests.page_commands import PAGES
from tests.page_output import missing
from transport.process.doctor_findings import CheckVerdict
from wire.catalogue import Catalogue

OK, ABSENT = CheckVerdict.OK, CheckVerdict.ABSENT
TWO = (ListedGpu("H100", "GPU-Aa"), ListedGpu("other", "GPU-bb"))


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """One that the agent's user may enter: a doctor of root's looks as that user."""
    with fleet_folder() as folder:
        yield folder


def host(gpus: tuple[str, ...] = (), uuids: tuple[str, ...] = ()) -> HostSection:
    return HostSection(Path("key"), Path("state"), gpus, uuids)


@pytest.mark.parametrize(
    ("listed", "named", "verdict", "found"),
    [
        (TWO, host(("H100", "other"), ("gpu-BB", " GPU-aa")), OK, "agent.toml names them"),
        (TWO, host(), ABSENT, "does not name these"),
        (TWO, host(("H100", "H100"), ("GPU-aa", "GPU-bb")), ABSENT, "does not name these"),
        (TWO, host(("H100", "other"), ("GPU-aa", "GPU-cc")), ABSENT, "does not name these"),
        (TWO, host(("H100", "other")), ABSENT, "does not name these"),
        (TWO, None, OK, "the driver lists 2: H100, other"),
        ("no NVML", host(), OK, "none; no driver lists one"),
        ("no NVML", None, OK, "none; no driver lists one"),
        ("no NVML", host(("H100",)), ABSENT, "names 1, no driver lists one: no NVML"),
    ],
)
def test_gpus_that_are_not_named_are_told(
    listed: tuple[ListedGpu, ...] | str, named: HostSection | None, verdict: str, found: str
) -> None:
    finding = gpus_finding(listed, named)
    assert finding.verdict is verdict
    assert found in finding.found
    assert bool(finding.do) == (verdict is ABSENT)


def test_gpus_have_the_catalogue_s_names_or_a_reason_for_none() -> None:
    classes = Catalogue.load().classes("gpu_model")
    read = [
        DeviceReading(n, f"GPU-{n}", model, 0, 0, {})
        for n, model in enumerate(["NVIDIA H100 80GB HBM3", "NVIDIA GeForce RTX 4090"])
    ]
    found = listed_gpus(classes, lambda: read)
    assert found == (ListedGpu("H100", "GPU-0"), ListedGpu("other", "GPU-1"))

    def away() -> list[DeviceReading]:
        raise DevicesUnavailable("NVML: Driver Not Loaded")

    assert listed_gpus(classes, away) == "NVML: Driver Not Loaded"


@pytest.mark.slow
def test_doctor_prints_the_lines_that_name_the_gpus(open_folder: Path) -> None:
    """They stand outside the table, whole, so that they can be copied; named so, all is well."""
    driver = FakeDriver(open_folder)
    driver.play("gpus 2")
    driver.path.chmod(0o644)
    first, second = (f"GPU-00000000-0000-0000-0000-00000000000{n}" for n in (0, 1))
    lines = f'gpus = ["H100", "H100"]\ngpu_uuids = ["{first}", "{second}"]\n'
    config = open_folder / "agent.toml"
    table = f"""[host]
key_file = "{open_folder}/key"
state_dir = "{open_folder}/state"
{{}}
[transport]
folder = "{open_folder}/log"
[trust]
leaders = ["{"aa" * 32}"]
helpers = ["{"bb" * 32}"]
"""
    said = []
    for named in ("", lines):
        config.write_text(table.format(named))
        done = subprocess.run(
            [sys.executable, "-m", "pointillist", "agent", "doctor", "--config", str(config)],
            env={**os.environ, **driver.environment, "COLUMNS": "100"},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        said.append(done.stdout + done.stderr)
    assert all(f"  {line}\n" in said[0] for line in lines.splitlines())
    assert f"pointillist keys generate host --gpu {first} --gpu {second}\n" in said[0]
    page = PAGES["first-host.md"].read_text(encoding="utf-8")
    block = page.partition("<!-- gpus -->")[2].partition("<!-- /gpus -->")[0]
    output = [line for line in block.splitlines() if line and line[0] not in "`."]
    assert len(output) > 5
    assert missing(output, said[0]) == []
    assert "agent.toml names them" in said[1]
    assert "keys generate host --gpu" not in said[1]
