"""What setting up installs, and what it says when it cannot: the scripts beside stub programs."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import subprocess
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
FOLDERS = (
    "wire", "privacy", "transport", "kernels", "collectors", "diagnosis", "edge_agent",
    "aggregator", "analytics", "simulator", "web", "pages", "pointillist", "bpf", "cupti",
)  # fmt: skip
NO_NETWORK = """error: Request failed after 3 retries in 3.8s
  cause: error sending request
  cause: failed to lookup address information: Temporary failure in name resolution"""

INSTALLED = "mkdir -p .venv/bin .venv/lib && ln -sf $PWD/bin/python .venv/bin/"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The scripts alone, on a machine of root's with nothing installed and two stub installers."""
    for name in ("scripts", "requirements"):
        shutil.copytree(REPOSITORY / name, tmp_path / name, ignore=shutil.ignore_patterns("buf"))
    for name in (*FOLDERS, "bin"):
        (tmp_path / name).mkdir()
    stub(tmp_path, "id", "echo 0")
    stub(tmp_path, "dpkg-query", "exit 1")
    stub(tmp_path, "apt-get", "")
    stub(tmp_path, "python", "echo $PYTHONDONTWRITEBYTECODE")
    stub(tmp_path, "uv", INSTALLED)
    return tmp_path


def stub(checkout: Path, name: str, code: str) -> None:
    """Make a program that notes how it was called, then does `code`."""
    path = checkout / "bin" / name
    path.write_text(f'#!/bin/sh\necho "{name} $*" >>{checkout}/calls\n{code}\n')
    path.chmod(0o755)


def run(checkout: Path, *command: str) -> subprocess.CompletedProcess[str]:
    path = f"{checkout / 'bin'}:{os.environ['PATH']}"
    return subprocess.run(
        [checkout / command[0], *command[1:]],
        env={**os.environ, "PATH": path}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def calls(checkout: Path, program: str) -> list[str]:
    lines = (checkout / "calls").read_text().splitlines()
    return [line for line in lines if line.startswith(f"{program} ")]


def test_setup_installs_python_packages_and_nothing_else(checkout: Path) -> None:
    done = run(checkout, "scripts/setup.sh")
    assert done.returncode == 0, done.stderr
    assert any("--require-hashes" in call for call in calls(checkout, "uv"))
    assert calls(checkout, "apt-get") == []


def test_setup_compiles_what_the_demo_loads_whatever_the_environment_says(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    done = run(checkout, "scripts/setup.sh")
    assert "simulator.slices" in calls(checkout, "python")[-1]
    assert done.stdout.splitlines()[-1] == ""  # what the stub's environment says of bytecode


def test_setup_says_in_one_sentence_that_the_network_failed(checkout: Path) -> None:
    stub(checkout, "uv", f"case $* in *sync*) echo '{NO_NETWORK}' >&2; exit 2;; esac")
    done = run(checkout, "scripts/setup.sh")
    assert done.returncode == 1
    why = "the network or the package index did not answer"
    assert done.stderr == f"Python packages could not be installed: {why}\n"


def test_setup_repeats_what_else_the_installer_said_last(checkout: Path) -> None:
    said = "error: Failed to install numpy\n  cause: No space left on device (os error 28)"
    stub(checkout, "uv", f"echo '{said}' >&2; exit 2")
    done = run(checkout, "scripts/setup.sh")
    assert done.stderr.splitlines() == [
        "Python packages could not be installed: No space left on device (os error 28)"
    ]


def test_setup_lets_others_read_the_code_that_root_installed(checkout: Path) -> None:
    stub(checkout, "uv", f"{INSTALLED} && touch .venv/lib/numpy.py && chmod -R 0700 .venv")
    private = checkout / "wire" / "labels.py"
    private.touch(0o600)
    assert run(checkout, "scripts/setup.sh").returncode == 0
    modes = [path.stat().st_mode & 0o777 for path in (private, checkout / ".venv" / "lib")]
    assert modes == [0o644, 0o755]


def test_apt_installs_what_is_missing_in_one_go_as_root(checkout: Path) -> None:
    stub(checkout, "dpkg-query", "echo gcc installed; echo clang config-files; exit 1")
    done = run(checkout, "scripts/apt.sh", "Tests", "gcc", "clang", "stress-ng")
    assert done.returncode == 0
    assert "install clang stress-ng" in calls(checkout, "apt-get")[-1]


def test_apt_tells_others_than_root_what_is_left_out_and_why(checkout: Path) -> None:
    stub(checkout, "id", "echo 1000")
    done = run(checkout, "scripts/apt.sh", "Tests of eBPF", "gcc", "clang")
    assert done.returncode == 1
    command = "apt-get install --no-install-recommends clang gcc"
    assert done.stderr == f"Tests of eBPF: left out until root runs: {command}\n"
    assert calls(checkout, "apt-get") == []


def test_all_that_root_installs_is_said_before_the_first_of_it(checkout: Path) -> None:
    stub(checkout, "getent", "exit 2")
    stub(checkout, "find", "")  # no headers to link
    stub(checkout, "apt-get", "echo not to be had >&2; exit 100")
    first, second, *later = run(checkout, "scripts/setup_tools.sh").stderr.splitlines()
    assert first.startswith("Tests and benches: as root this installs ")
    assert "group pointillist and a user of the system for each role" in second
    installed = {word for call in calls(checkout, "apt-get") for word in call.split()[5:]}
    assert {"clang", "postgresql", "chromium", "python3-torch"} <= installed
    named = set(first.replace(",", "").split())
    assert {name for name in installed if not name.startswith("linux-headers")} <= named
    assert all("Installing" in line or "could not be installed" in line for line in later)


def test_others_than_root_are_told_of_no_installing(checkout: Path) -> None:
    stub(checkout, "id", "echo 1000")
    said = run(checkout, "scripts/setup_tools.sh").stderr.splitlines()
    assert said != []
    assert all("left out until root runs: apt-get install" in line for line in said)


@pytest.mark.parametrize(("target", "expected"), [("demo", False), ("test", True)])
def test_make_installs_tools_for_tests_and_not_for_the_demo(target: str, expected: bool) -> None:
    done = subprocess.run(
        ["make", "--dry-run", target], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    assert ("setup_tools" in done.stdout) == expected
    assert ("broker.local" in done.stdout) == expected  # else a test's fixture does it, unsaid


WHO = """
import json, os, pathlib, shutil, sys
print(json.dumps([
    os.geteuid(), pathlib.Path.cwd().stat().st_uid, pathlib.Path("Makefile").exists(),
    os.environ["PATH"], shutil.which("python3"), str(pathlib.Path.cwd()),
]))
sys.exit(3)
"""


@pytest.mark.root
def test_ordinary_user_owns_a_copy_that_is_gone_at_the_end() -> None:
    if not (REPOSITORY / ".git").exists():
        pytest.skip("not a git checkout")
    script = REPOSITORY / "scripts" / "ordinary_user.sh"
    done = subprocess.run(
        [script, "/usr/bin/python3", "-c", WHO],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 3, done.stderr
    told, *_, found = done.stdout.splitlines()
    user, owner, copied, path, python, folder = json.loads(found)
    assert (user, copied, path, python) == (owner, True, "/usr/bin:/bin", "/usr/bin/python3")
    assert user != 0
    assert folder in told
    assert not Path(folder).parent.exists()
    with pytest.raises(KeyError):
        pwd.getpwuid(user)


MADE = """case $* in
test\\ *)
    printf 'noise\\n--- 9 tests in 3 s: 1 failed\\nFAILED: a.py::b\\nLEFT OPEN: thread c\\n'
    exit 2;;
lint) seq 99; exit 2;;
*) echo "--- 4 tests in 1 s: 0 failed"; echo more;;
esac"""


def test_ci_goes_on_after_a_failure_and_ends_with_what_each_failed_step_said(
    checkout: Path,
) -> None:
    shutil.copytree(REPOSITORY / ".ci", checkout / ".ci")
    stub(checkout, "make", MADE)
    stub(checkout, "useradd", "echo no more users; exit 9")
    done = run(checkout, ".ci/run")
    assert len(calls(checkout, "make")) == 4
    end = done.stdout.partition("FAILED STEP: make lint\n")[2].splitlines()
    assert end[11:15] == [
        "99",
        "FAILED STEP: make test ARGS=-rs",
        "--- 9 tests in 3 s: 1 failed",
        "FAILED: a.py::b",
    ]
    assert end[15] == "LEFT OPEN: thread c"
    assert end[16].startswith("FAILED STEP: scripts/ordinary_user.sh ")
    assert done.returncode != 0


def test_versions_that_cannot_be_had_are_left_out_with_a_line_each(checkout: Path) -> None:
    shutil.copy(REPOSITORY / "pyproject.toml", checkout)
    stub(checkout, "uv", f"echo '{NO_NETWORK}' >&2; exit 2")
    done = run(checkout, "scripts/versions.sh")
    why = "left out: the network or the package index did not answer"
    assert done.returncode == 0
    assert done.stderr.splitlines() == [
        f"Tests in .venv-lowest: {why}",
        f"Tests in .venv-newest: {why}",
    ]
    asked = [call.split()[4:6] for call in calls(checkout, "uv")]
    assert asked == [["--python", "3.11"], ["--python", "3.14"]]


UNPACKS = """while [ $# -gt 0 ]; do [ "$1" = --target ] && mkdir -p "$2"; shift; done"""
"""What a stub of uv does with the folder it is given."""


def test_wheels_are_unpacked_by_hash_and_once(checkout: Path) -> None:
    stub(checkout, "uv", UNPACKS)
    for _ in range(2):
        assert run(checkout, "scripts/cuda_wheels.sh").returncode == 0
    made = calls(checkout, "uv")
    assert [("cuda.txt" in call, "cuda-12-6.txt" in call) for call in made] == [
        (True, False),
        (False, True),
    ]
    assert all("--require-hashes" in call and "--target .tools/cuda" in call for call in made)


def test_wheels_are_unpacked_anew_when_their_versions_change(checkout: Path) -> None:
    stub(checkout, "uv", UNPACKS)
    run(checkout, "scripts/cuda_wheels.sh")
    with (checkout / "requirements" / "cuda-12-6.txt").open("a") as requirements:
        requirements.write("# another\n")
    assert run(checkout, "scripts/cuda_wheels.sh").returncode == 0
    assert len(calls(checkout, "uv")) == 3


@pytest.mark.parametrize(
    ("said", "ci", "code"),
    [(NO_NETWORK, "", 77), (NO_NETWORK, "true", 1), ("error: Hash mismatch for nccl", "", 1)],
    ids=["no network", "no network under CI", "another hash"],
)
def test_wheels_that_cannot_be_fetched_skip_tests_only_without_a_network(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, said: str, ci: str, code: int
) -> None:
    monkeypatch.setenv("CI", ci)
    stub(checkout, "uv", f"echo '{said}' >&2; exit 2")
    done = run(checkout, "scripts/cuda_wheels.sh")
    assert done.returncode == code
    assert done.stderr.startswith("NVIDIA's wheels could not be fetched: ")
    assert not (checkout / ".tools" / "cuda").exists()


def test_wheels_are_for_linux_on_x86_64(checkout: Path) -> None:
    stub(checkout, "uname", "echo Linux aarch64")
    done = run(checkout, "scripts/cuda_wheels.sh")
    assert (done.returncode, calls(checkout, "uv")) == (77, [])


@pytest.mark.parametrize(("ci", "code"), [("", 77), ("true", 1)])
def test_driver_libraries_that_cannot_be_fetched_skip_tests_but_under_ci(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, ci: str, code: int
) -> None:
    monkeypatch.setenv("CI", ci)
    lists = "Debian|main|bookworm|http://mirror.invalid/debian"
    stub(checkout, "uname", "echo x86_64")
    stub(checkout, "dpkg-deb", "")
    stub(checkout, "apt-get", f'case $* in *indextargets*) echo "{lists}";; *) exit 100;; esac')
    done = run(checkout, "scripts/gpu_libraries.sh")
    assert done.returncode == code
    assert "libcuda1 libnvidia-ml1 could not be fetched" in done.stderr
