"""Profiles of real processes: every call of one process, whatever ends it, and clear refusals."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from collectors.bpf.uprobes import filters_processes
from collectors.profiling.session import NamedCall, NothingToProfile, ProfileSession
from pointillist.cli.agent_profile import profile
from pointillist.cli.output import CommandError, ExitCode
from tests.closed_kit import closed
from tests.collectors.gpu_calls.process_actor import Actor, compiled
from tests.probes_kit import Stubs, attachments, begin, now_ns, probing, run, waiting
from tests.profile_kit import ReadProfile, check_trace, parse

REPOSITORY = Path(__file__).resolve().parents[3]
PATIENCE_S = 60
root = pytest.mark.root


@contextmanager
def profiled(stubs: Stubs, *words: object) -> Iterator[tuple[ProfileSession, list[NamedCall]]]:
    """A caller that makes its calls inside the block; after it the list holds what was taken."""
    taken: list[NamedCall] = []
    with waiting(stubs.caller("libcudart"), *words) as child, ProfileSession(child.pid) as session:
        session.start()
        begin(child)
        yield session, taken
        taken += session.stop()


@contextmanager
def command(pid: int, out: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    """A running `agent profile` that has said that it probes."""
    arguments = ["agent", "profile", "--pid", str(pid), "--out", str(out), *options]
    running = subprocess.Popen(
        [sys.executable, "-m", "pointillist", *arguments],
        stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )  # fmt: skip
    assert running.stderr is not None
    try:
        assert "Ctrl-C ends early" in running.stderr.readline()
        yield running
    finally:
        running.kill()
        running.wait()
        running.stderr.close()


def ended(running: subprocess.Popen[str]) -> str:
    """Wait for a command that ends well; give what it said last."""
    assert running.stderr is not None
    said = running.stderr.read()
    assert running.wait(PATIENCE_S) == 0, said
    return said.strip().splitlines()[-1]


@root
def test_profile_takes_every_call_of_every_thread(stubs: Stubs) -> None:
    with profiled(stubs, "threads", 2, 307) as (session, taken):
        run(stubs.caller("libcudart"), "threads", 1, 101)  # another process, of no interest
    assert Counter(one.sample.call for one in taken) == {"cudart.launch": 614}
    assert sorted(one.sample.correlation for one in taken) == list(range(1, 615))
    assert len({one.sample.thread for one in taken}) == 2
    assert all(one.sample.duration_ns > 0 for one in taken)
    assert all(len(one.stack) >= 2 for one in taken)
    assert (session.calls, session.lost) == (614, 0)


@root
def test_profile_says_what_each_call_was(stubs: Stubs) -> None:
    with profiled(stubs, "copies") as (_, taken):
        pass
    kinds = Counter((one.kind.value, one.on_stream) for one in taken)
    assert kinds == {("copy", False): 17, ("copy", True): 2, ("memset", False): 1}
    assert {one.sample.bytes for one in taken if one.on_stream} == {0, 1}
    with profiled(stubs, "launches") as (session, taken):
        subject_pid = session.target.pid
    names = Counter(one.kernel for one in taken)
    assert names == {
        "graph 0x6a": 5, "unknown 0x10100": 1, "unknown 0x10200": 1, "unknown 0x10300": 3,
    }  # fmt: skip
    assert {one.sample.process.pid for one in taken} == {subject_pid}


@root
def test_profile_finds_a_library_that_is_loaded_later(stubs: Stubs, tmp_path: Path) -> None:
    program, _, _ = compiled(tmp_path)
    actor = Actor(program)
    try:
        with (
            ProfileSession(actor.pid) as session,
            pytest.raises(NothingToProfile, match="no CUDA, HIP, NCCL or RCCL library"),
        ):
            session.start()
        actor.ask(f"load {stubs.library('libcudart')}")
        with ProfileSession(actor.pid) as session:
            session.start()
            assert session.files == 1
            actor.ask(f"load {stubs.library('libnccl')}")
            patience = time.monotonic() + PATIENCE_S
            while session.files < 2:
                assert time.monotonic() < patience, "the second library was never found"
                session.poll()
                time.sleep(0.05)
    finally:
        actor.end()


@root
def test_profile_probes_one_process_alone(stubs: Stubs) -> None:
    if not filters_processes():
        pytest.skip("this kernel's filter passes one thread alone and is not used")
    library = stubs.library("libcudart")
    with (
        waiting(stubs.caller("libcudart"), "threads", 2, 53) as child,
        probing(only=child.pid) as probed,
    ):
        probed.programs.attach(1, str(library), attachments(library, probed.table))
        begin(child)
        run(stubs.caller("libcudart"), "threads", 2, 97)
        drain = probed.programs.drain(now_ns())
    assert sum(row.launches for row in drain.launches) == 106
    assert {process.pid for _, process in drain.hits} == {child.pid}


@root
def test_profile_command_ends_early_on_ctrl_c_and_writes(stubs: Stubs, tmp_path: Path) -> None:
    out = tmp_path / "calls.pb.gz"
    with (
        waiting(stubs.caller("libcudart"), "threads", 3, 211) as child,
        command(child.pid, out, "--seconds", "600") as running,
    ):
        begin(child)
        running.send_signal(signal.SIGINT)
        said = ended(running)
    assert said.startswith("interrupted after")
    assert "633 calls" in said
    assert out.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [out], "nothing half written is left"
    read = ReadProfile(parse(gzip.decompress(out.read_bytes())))
    assert read.total("gpu_kernel_launches") == 633
    program = read.mappings[1]
    assert read.strings[program[5][0]] == str(stubs.caller("libcudart"))
    assert read.strings[program[6][0]], "the program has a build id"
    libraries = {read.strings[m[5][0]] for m in read.mappings.values()}
    assert str(stubs.library("libcudart")) in libraries


@root
def test_profile_command_writes_what_a_killed_process_did(stubs: Stubs, tmp_path: Path) -> None:
    out = tmp_path / "calls.json"
    with (
        waiting(stubs.caller("libcudart"), "waits") as child,
        command(child.pid, out, "--seconds", "600", "--no-stacks") as running,
    ):
        begin(child)
        child.kill()
        said = ended(running)
    assert said.startswith("the process ended after")
    calls = check_trace(json.loads(out.read_text()))
    assert Counter(event["args"]["call"] for event in calls) == {
        "cudart.device_synchronize": 3,
        "cudart.stream_synchronize": 5,
        "cudart.stream_wait_event": 1,
    }  # fmt: skip
    assert all(event["cat"] == "wait" for event in calls)


@pytest.mark.parametrize(
    ("pid", "name", "code", "said"),
    [
        (os.getpid(), "out.txt", ExitCode.USAGE, "expected a name ending in .pb.gz"),
        (os.getpid(), "none/out.json", ExitCode.UNAVAILABLE, "No such file or directory"),
        (1 << 22, "out.json", ExitCode.UNAVAILABLE, "there is no process 4194304"),
    ],
    ids=["format", "folder", "process"],
)
def test_profile_command_refuses_clearly(
    tmp_path: Path, pid: int, name: str, code: ExitCode, said: str
) -> None:
    with pytest.raises(CommandError, match=said) as refusal:
        profile(pid, tmp_path / name)
    assert refusal.value.code == code
    assert refusal.value.hint or code == ExitCode.UNAVAILABLE
    assert list(tmp_path.iterdir()) == []


@root
def test_profile_command_says_when_there_is_nothing_to_see(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "60"]) as child:
        try:
            with pytest.raises(CommandError, match="no CUDA, HIP, NCCL or RCCL") as refusal:
                profile(child.pid, tmp_path / "out.json")
        finally:
            child.kill()
    assert refusal.value.code == ExitCode.UNAVAILABLE
    assert refusal.value.hint
    assert list(tmp_path.iterdir()) == []


@root
def test_profile_refuses_without_rights_to_look(stubs: Stubs) -> None:
    script = (
        "import sys\n"
        "from collectors.profiling.session import ProfileSession\n"
        "from collectors.profiling.session import NothingToProfile\n"
        "from transport.process.privileges import AGENT_USER, drop_to, ensure_users\n"
        "ensure_users(); drop_to(AGENT_USER)\n"
        "try:\n"
        "    ProfileSession(int(sys.argv[1]))\n"
        "except NothingToProfile as error:\n"
        "    print(error, '|', error.hint)\n"
    )
    with waiting(stubs.caller("libcudart"), "waits") as child:
        done = subprocess.run(
            closed([sys.executable, "-c", script, child.pid]), capture_output=True, text=True,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY)}, timeout=PATIENCE_S, check=False,
        )  # fmt: skip
    assert f"may not look into process {child.pid}" in done.stdout, done.stderr
    assert "CAP_SYS_PTRACE" in done.stdout
