"""The wheel: the same bytes from the same files, and all that an installation needs."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from email import message_from_bytes
from pathlib import Path
from zipfile import ZipFile

import pytest
from packaging.requirements import Requirement

from pointillist.cli import root as cli
from pointillist.installation import FOLDERS, samples

REPOSITORY = Path(__file__).resolve().parents[3]
# Of each kind that programs load: eBPF, CUPTI's library, rules, catalogue, pages, plans.
LOADED = {
    "bpf/objects/host.bpf.o", "bpf/objects/gpu.x86_64.bpf.o", "bpf/objects/steps.bpf.o",
    "bpf/objects/gpu.aarch64.bpf.o", "cupti/objects/libpointillist-gpu-time.x86_64.so",
    "cupti/objects/libpointillist-gpu-time.aarch64.so", "wire/catalogue.toml",
    "kernels/families.toml", "kernels/signatures.json", "pages/templates/page.html",
    "pointillist/plans/default.toml", "aggregator/witness/postgresql.sql",
    "pointillist/broker/pom.xml",
}  # fmt: skip


def run_main(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> object:
    """Run the whole command line; returns its exit code."""
    monkeypatch.setattr(sys, "argv", ["pointillist", *arguments])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return ended.value.code


def build(folder: Path, umask: int, zone: str) -> Path:
    done = subprocess.run(
        ["scripts/wheel.sh", str(folder)], cwd=REPOSITORY, umask=umask, check=True,
        env={**os.environ, "TZ": zone}, capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    return Path(done.stdout.strip())


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("wheel"), 0o022, "UTC")


def test_wheel_is_the_same_whoever_builds_it(wheel: Path, tmp_path: Path) -> None:
    other = build(tmp_path, 0o077, "Asia/Tokyo")
    assert other.name == wheel.name
    assert other.read_bytes() == wheel.read_bytes()


def test_wheel_holds_what_programs_load_and_every_sample(wheel: Path) -> None:
    with ZipFile(wheel) as packed:
        names = set(packed.namelist())
        assert names >= LOADED
        (told,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        said = message_from_bytes(packed.read(told))
        for sample in samples():
            inside = f"pointillist/samples/{sample.path.parent.name}/{sample.name}"
            assert packed.read(inside) == sample.path.read_bytes()
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert said["Requires-Python"] == project["requires-python"]
    assert said.get_all("Classifier") == project["classifiers"]
    declared = {*project["dependencies"]}.union(*project["optional-dependencies"].values())
    required = {one.partition(";")[0].strip() for one in said.get_all("Requires-Dist", ())}
    ours = {one for one in declared if not one.startswith("pointillist[")}
    assert {*map(Requirement, required)} == {*map(Requirement, ours)}
    tops = {name.partition("/")[0] for name in names}
    assert tops.isdisjoint({"tests", "bench", "scripts", "docs", "deploy"})


def test_samples_are_all_of_their_folders_under_one_name_each() -> None:
    names = [sample.name for sample in samples()]
    assert len(set(names)) == len(names)
    assert {sample.path.parent.name for sample in samples()} == set(FOLDERS)


def test_sample_is_printed_byte_for_byte_and_an_unknown_one_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    assert run_main(monkeypatch, "sample", "show", "agent.toml") == 0
    text = (REPOSITORY / "deploy" / "config" / "agent.toml").read_bytes()
    assert capsysbinary.readouterr().out == text
    assert run_main(monkeypatch, "sample", "show", "agnt.toml") == 2
    assert b"one of: agent.toml" in capsysbinary.readouterr().err


@pytest.mark.parametrize("party", ["leader", "helper", "witness", "agent"])
def test_sample_that_an_error_names_is_there(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], party: str
) -> None:
    assert run_main(monkeypatch, party, "run", "--config", "/nowhere/file.toml") == 2
    assert f"pointillist sample show {party}.toml" in capsys.readouterr().err
    assert f"{party}.toml" in {sample.name for sample in samples()}
