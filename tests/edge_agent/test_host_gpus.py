"""A host's GPUs: bound to its key once, compared by the doctor, missed where one is gone."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from collectors.devices.device_port import DeviceReading, DevicesUnavailable
from edge_agent.bound_gpus import GpusUnready, ListedGpu, bind_gpus, listed_gpus, with_bound_gpus
from edge_agent.config import AUTO, AgentConfig, HostSection, TrustSection
from edge_agent.open_agent import load_host, open_ledger, this_machine
from edge_agent.service.doctor import host_gpus
from privacy.signing import SigningKey
from tests.fake_nvml_kit import FakeDriver
from tests.fleet_kit import fleet_folder
from tests.page_commands import PAGES, missing
from transport.factory import TransportTable
from transport.files import keyfiles
from transport.files.keyfiles import HostKey, KeyFileRefused, host_binding, machine_id
from transport.process.doctor_checks import CheckVerdict, examine
from wire.catalogue import Catalogue

OK, ABSENT, UNMEASURED, BROKEN = (
    CheckVerdict.OK, CheckVerdict.ABSENT, CheckVerdict.UNMEASURED, CheckVerdict.BROKEN,
)  # fmt: skip
TWO = (ListedGpu("H100", "GPU-Aa"), ListedGpu("other", "GPU-bb"))
UUIDS = [gpu.uuid for gpu in TWO]


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
        (TWO, host(("other", "H100"), ("gpu-BB", " GPU-aa")), OK, "the key is bound to them"),
        (TWO, host(), ABSENT, "not bound to these"),
        (TWO, host(("H100", "H100"), ("GPU-aa", "GPU-bb")), ABSENT, "not bound to these"),
        (TWO, host(("H100", "other"), ("GPU-aa", "GPU-cc")), UNMEASURED, "missing: other gpu-cc"),
        (TWO, host(("H100", "other")), ABSENT, "not bound to these"),
        (TWO, host(("H100", "H100"), ("GPU-cc", "GPU-dd")), BROKEN, "bound to 2, none of these"),
        (TWO, None, OK, "the driver lists 2: H100, other"),
        (TWO, replace(host(), gpus=AUTO), OK, "bound to them when it joins"),
        ("no NVML", host(), OK, "none; no driver lists one"),
        ("no NVML", None, OK, "none; no driver lists one"),
        ("no NVML", host(("H100",)), UNMEASURED, "bound to 1, no driver lists one: no NVML"),
    ],
)
def test_gpus_that_are_not_bound_or_missing_are_told(
    listed: tuple[ListedGpu, ...] | str, named: HostSection | None, verdict: str, found: str
) -> None:
    (finding,) = examine(host_gpus(listed, named))
    assert finding.verdict is verdict
    assert found in finding.found
    assert bool(finding.do) == (verdict is not OK)


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


# "auto" ---------------------------------------------------------------------------------------


def automatic(folder: Path, *gpus: str) -> AgentConfig:
    """A host whose key was made for these GPUs."""
    config = AgentConfig(
        HostSection(folder / "keys" / "host.key", folder / "state", AUTO),
        TransportTable(folder / "log"),
        TrustSection(frozenset({bytes(32)}), frozenset({bytes([1] * 32)})),
    )
    config.host.key_file.parent.mkdir(exist_ok=True)
    binding = host_binding(machine_id(), gpus)
    keyfiles.write_host_key(config.host.key_file, HostKey(SigningKey.generate(), binding))
    return config


def bound(config: AgentConfig, found: tuple[ListedGpu, ...] | str, pci: Path) -> HostSection:
    return bind_gpus(config, lambda: found, pci).host


def test_key_is_bound_once_and_keeps_a_gpu_that_is_missing_later(tmp_path: Path) -> None:
    config = automatic(tmp_path)
    before = load_host(config, this_machine(config))
    assert with_bound_gpus(config) == config
    made = bound(config, TWO, tmp_path)
    assert (made.gpus, made.gpu_uuids) == (("H100", "other"), ("GPU-Aa", "GPU-bb"))
    for left in (TWO[1:], (), "no driver"):
        assert bound(config, left, tmp_path) == made
    settled = with_bound_gpus(config)
    assert load_host(settled, this_machine(settled)) == before, "the identity is the same"
    open_ledger(settled, this_machine(settled), 1_800_000_000).close()


def test_binding_that_was_cut_off_is_ended_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = automatic(tmp_path)

    def full(*_arguments: object) -> None:
        raise OSError("no space left")

    with monkeypatch.context() as cut:
        cut.setattr("edge_agent.bound_gpus.write_record", full)
        with pytest.raises(OSError, match="no space left"):
            bound(config, TWO, tmp_path)
    assert with_bound_gpus(config) == config
    assert bound(config, TWO, tmp_path).gpu_uuids == ("GPU-Aa", "GPU-bb")


def test_key_of_other_gpus_or_with_a_ledger_is_not_bound_anew(tmp_path: Path) -> None:
    config = automatic(tmp_path, *UUIDS)
    assert bound(config, TWO, tmp_path).gpu_uuids == tuple(UUIDS), "made with --gpu for these"
    (tmp_path / "other").mkdir()
    other = automatic(tmp_path / "other", "GPU-Aa", "GPU-cc")
    with pytest.raises(KeyFileRefused, match=r"1 of 2 GPUs gone, 1 GPU not known before"):
        bound(other, TWO, tmp_path)
    (tmp_path / "spent").mkdir()
    spent = automatic(tmp_path / "spent")
    keyfiles.mark_ledger(spent.host.key_file, host_binding(machine_id(), []))
    with pytest.raises(KeyFileRefused, match=r"2 GPUs not known before.*agent rekey"):
        bound(spent, TWO, tmp_path)
    assert bound(spent, "no driver", tmp_path).gpus == (), "a machine without GPUs"


def test_gpus_without_a_driver_or_an_id_bind_no_key(tmp_path: Path) -> None:
    config = automatic(tmp_path)
    card = tmp_path / "pci" / "0000:04:00.0"
    card.mkdir(parents=True)
    (card / "vendor").write_text("0x10de\n")
    (card / "class").write_text("0x030200\n")
    with pytest.raises(GpusUnready, match=r"1 GPUs .*0000:04:00\.0.*Driver Not Loaded"):
        bound(config, "Driver Not Loaded", tmp_path / "pci")
    with pytest.raises(GpusUnready, match="1 of 2 GPUs have no UUID"):
        bound(config, (TWO[0], ListedGpu("H100", "index-1")), tmp_path)
    (card / "class").write_text("0x020000\n")
    assert bound(config, "Driver Not Loaded", tmp_path / "pci").gpus == ()


@pytest.mark.parametrize(
    ("scenario", "says"),
    [
        ("gpus 3", "ok libnvidia-ml.so.1: the driver answers for 3 GPUs"),
        ("* nvmlInitWithFlags error 9", "absent NVML: Driver Not Loaded"),
    ],
)
def test_doctor_asks_the_driver_whose_library_it_finds(
    tmp_path: Path, scenario: str, says: str
) -> None:
    driver = FakeDriver(tmp_path)
    driver.play(scenario)
    asks = (
        "from edge_agent.service.doctor import ThisMachine\n"
        "from transport.process.doctor_checks import examine\n"
        "if __name__ == '__main__':\n"
        " found = next(one for one in examine(ThisMachine()) if one.name == 'nvml')\n"
        " print(found.verdict, found.found)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", asks], env={**os.environ, **driver.environment},
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert done.stdout == f"{says}\n"


@pytest.mark.release
def test_gpu_that_is_taken_away_is_named_and_the_host_goes_on(open_folder: Path) -> None:
    """By the commands, as a newcomer types them; the GPUs are those of the tests' NVML."""
    driver = FakeDriver(open_folder)
    driver.play("gpus 2")
    driver.path.chmod(0o644)
    config = open_folder / "agent.toml"
    config.write_text(f"""[host]
key_file = "{open_folder}/keys/host/identity.key"
state_dir = "{open_folder}/state"
gpus = "auto"
[transport]
folder = "{open_folder}/log"
[trust]
leaders = ["{"aa" * 32}"]
helpers = ["{"bb" * 32}"]
[sources.probes]
enabled = false
[metrics]
enabled = false
""")
    (open_folder / "log").mkdir()
    (open_folder / "log").chmod(0o777)
    environment = {**os.environ, **driver.environment, "COLUMNS": "200"}

    def pointillist(*words: str, until: str = "") -> tuple[str, int]:
        """Give what a command said; one that runs on is ended once it says so."""
        child = subprocess.Popen(
            [sys.executable, "-m", "pointillist", *words], env=environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        assert child.stdout is not None
        lines = []
        for line in child.stdout:
            lines.append(line)
            if until and until in line:
                child.terminate()
        return "".join(lines), child.wait()

    _, code = pointillist("keys", "generate", "host", "--folder", str(open_folder / "keys"))
    assert code == 0
    said, code = pointillist("agent", "doctor", "-c", str(config))
    page = PAGES["first-host.md"].read_text(encoding="utf-8")
    block = page.partition("<!-- gpus -->")[2].partition("<!-- /gpus -->")[0]
    output = [line for line in block.splitlines() if line and line[0] not in "`."]
    assert output
    assert missing(output, said) == []
    said, code = pointillist("agent", "run", "-c", str(config), until='"event": "agent"')
    assert code == 0, said
    driver.play("gpus 2", "lost 1")
    first = "GPU-00000000-0000-0000-0000-000000000000"
    said, code = pointillist("agent", "doctor", "-c", str(config))
    assert code == 1
    assert f"missing: H100 {first.lower()}: unmeasured" in said
    assert "asked for and not measured here: gpus" in said
    said, code = pointillist("agent", "run", "-c", str(config), until='"event": "agent"')
    assert code == 0, said
    assert f"devices: {first.lower()} is absent: no driver lists it" in said
