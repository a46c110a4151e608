"""`pointillist agent attach`: what it prints is what starts a GPU program with the library."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
import typer
import yaml
from typer.testing import CliRunner

from pointillist.cli import agent_attach
from pointillist.cli.output import CommandError, ExitCode

app = typer.Typer()
app.add_typer(agent_attach.app, name="agent")


def attach(*words: str) -> str:
    ran = CliRunner().invoke(app, ["agent", "attach", *words])
    assert ran.exit_code == 0, ran.output
    return ran.output


def test_attach_prints_a_library_that_is_there_and_the_agents_user() -> None:
    told = json.loads(attach("--json", "--user", "nobody"))["environment"]
    assert Path(told["CUDA_INJECTION64_PATH"]).is_file()
    assert told["POINTILLIST_AGENT_UID"] == "65534"
    assert "POINTILLIST_GPU_TIME_SOCKET" not in told  # the library looks there by itself


def test_attach_for_a_shell_sets_the_variables() -> None:
    script = attach("--socket", "/run/other.sock", "--user", "nobody") + "\nenv"
    ran = subprocess.run(["sh", "-c", script], check=True, capture_output=True, text=True)
    assert "POINTILLIST_GPU_TIME_SOCKET=/run/other.sock" in ran.stdout
    assert "CUDA_INJECTION64_PATH=/" in ran.stdout


def test_attach_names_a_socket_that_programs_reach_from_any_folder() -> None:
    told = json.loads(attach("--json", "--socket", "a/s.sock"))["environment"]
    assert told["POINTILLIST_GPU_TIME_SOCKET"] == str(Path("a/s.sock").absolute())


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--socket", "/" + 107 * "s"), "at most 107 bytes, got 108"),
        (("--user", "nobody-here"), "expected a user of this machine, got nobody-here"),
    ],
)
def test_attach_refuses_what_no_program_could_use(words: tuple[str, ...], expected: str) -> None:
    ran = CliRunner().invoke(app, ["agent", "attach", *words])
    assert isinstance(ran.exception, CommandError)
    assert (ran.exception.code, expected in str(ran.exception)) == (ExitCode.USAGE, True)


def test_attach_sets_what_is_recorded_of_graphs_where_it_is_not_the_usual() -> None:
    assert "POINTILLIST_GPU_TIME_GRAPHS" not in attach("--graphs", "kernels")
    assert "export POINTILLIST_GPU_TIME_GRAPHS=whole\n" in attach("--graphs", "whole")


def test_attach_for_a_task_prolog_prints_exports() -> None:
    ran = subprocess.run(["sh", "-c", attach("slurm")], check=True, capture_output=True, text=True)
    assert all(line.startswith("export ") for line in ran.stdout.splitlines())
    assert "CUDA_INJECTION64_PATH" in ran.stdout


def test_attach_for_a_pod_mounts_what_it_names() -> None:
    (container,) = (spec := yaml.safe_load(attach("kubernetes"))["spec"])["containers"]
    (library,) = (
        entry["value"] for entry in container["env"] if entry["name"] == "CUDA_INJECTION64_PATH"
    )
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    volumes = {volume["name"]: volume["hostPath"]["path"] for volume in spec["volumes"]}
    assert mounts == volumes
    assert str(Path(library).parent) in mounts.values()


def test_attach_quotes_what_a_shell_and_systemd_would_read_otherwise() -> None:
    odd = "/run/a b%h/x.sock"
    for script in (attach("--socket", odd) + "\nenv", attach("slurm", "--socket", odd)):
        ran = subprocess.run(["sh", "-c", script], check=True, capture_output=True, text=True)
        assert f"POINTILLIST_GPU_TIME_SOCKET={odd}" in ran.stdout
    unit = attach("systemd", "--socket", odd)
    assert 'Environment="POINTILLIST_GPU_TIME_SOCKET=/run/a b%%h/x.sock"' in unit


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_attach_for_systemd_is_a_unit_s_part(tmp_path: Path) -> None:
    unit = tmp_path / "trainer.service"
    unit.write_text(f"{attach('systemd', '--user', 'nobody')}\nExecStart=/bin/true\n")
    ran = subprocess.run(
        ["systemd-analyze", "verify", unit], capture_output=True, text=True, check=False
    )
    said = [line for line in ran.stderr.splitlines() if "trainer.service" in line]
    assert (ran.returncode, said) == (0, [])


def test_attach_for_a_pod_gives_strings_where_the_api_takes_no_numbers() -> None:
    spec = yaml.safe_load(attach("kubernetes", "--user", "nobody"))["spec"]
    (container,) = spec["containers"]
    values = {entry["name"]: entry["value"] for entry in container["env"]}
    assert values["POINTILLIST_AGENT_UID"] == "65534"
    assert {type(value) for value in values.values()} == {str}
    assert all(mount["readOnly"] for mount in container["volumeMounts"])
    assert {volume["hostPath"]["type"] for volume in spec["volumes"]} == {"Directory"}
