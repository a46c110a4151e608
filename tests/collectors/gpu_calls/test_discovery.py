"""Files and processes as the kernel tells of them: real processes, containers and pids."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Container, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from collectors.binaries.elf_file import ElfFile
from collectors.binaries.perf_ring import Record
from collectors.binaries.proc_maps import FileIdentity, MappedFile, Module, process_key
from collectors.gpu_calls.discovery import Discovery, DiscoveryThread
from collectors.gpu_calls.found_files import FileFound, FileGone, FoundFiles
from collectors.gpu_calls.probe_plan import PlanBook
from collectors.gpu_calls.probe_table import ProbeTable
from collectors.interface import SourceUnavailable
from collectors.records.gpu_calls import ProbeGroup
from tests.collectors.gpu_calls import elf_kit
from tests.collectors.gpu_calls.elf_kit import row
from tests.collectors.gpu_calls.process_actor import Actor, Watcher, acting, compiled

pytestmark = [
    pytest.mark.root,
    pytest.mark.kernel,
    pytest.mark.skipif(platform.machine() != "x86_64", reason="compiles for x86-64"),
]

BOOK = PlanBook(ProbeTable((row(ProbeGroup.LAUNCH, ("cudaLaunchKernel",)),)))
ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    return compiled(tmp_path_factory.mktemp("actor"))


@pytest.fixture(scope="module")
def shared() -> Iterator[Discovery]:
    """One for all tests, as on a host: each has files of its own."""
    discovery = Discovery(BOOK)
    yield discovery
    discovery.close()


@pytest.fixture
def watcher(shared: Discovery) -> Watcher:
    watching = Watcher(shared)
    watching.poll()
    return watching


@pytest.fixture
def runtime(programs: tuple[Path, Path, Path], tmp_path: Path) -> Path:
    """A CUDA runtime that nobody has mapped before."""
    return Path(shutil.copy(programs[2], tmp_path / "libcudart.so.12"))


@pytest.fixture
def actor(programs: tuple[Path, Path, Path]) -> Iterator[Actor]:
    yield from acting(programs[0])


def _static(path: Path) -> Path:
    main = 'int main(void) { write(1, "up\\n", 3); return pause(); }'
    source = f"#include <unistd.h>\n{elf_kit.STATIC}{main}"
    return elf_kit.compile_c(source, path, "-static")


def test_discovery_sees_a_library_loaded_and_its_process_end(
    watcher: Watcher, actor: Actor, runtime: Path
) -> None:
    actor.ask(f"load {runtime}")
    watcher.until(lambda: watcher.files(actor.pid))
    (found,) = watcher.found(runtime)
    status = runtime.stat()
    assert found.key == ((os.major(status.st_dev), os.minor(status.st_dev)), status.st_ino)
    assert found.plan.attachments[0].group is ProbeGroup.LAUNCH
    assert Path(found.open_path).samefile(runtime)
    with runtime.open("rb") as file:
        assert found.build_id == ElfFile.read(file).build_id
    assert 0 < found.mapped_ns < time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    assert watcher.files(actor.pid) == frozenset({found.file})
    actor.end()
    watcher.until(lambda: watcher.ends(actor.pid))


def test_discovery_finds_what_ran_before_it(actor: Actor, runtime: Path) -> None:
    actor.ask(f"load {runtime}")
    late = Watcher(Discovery(BOOK))
    late.poll()
    (found,) = late.found(runtime)
    assert found.mapped_ns == 0
    assert late.files(actor.pid) == frozenset({found.file})
    late.discovery.close()


def test_discovery_follows_fork_and_exec(watcher: Watcher, actor: Actor, runtime: Path) -> None:
    actor.ask(f"load {runtime}")
    watcher.until(lambda: watcher.files(actor.pid))
    child = actor.ask("fork")
    watcher.until(lambda: watcher.files(child))
    assert watcher.files(child) == watcher.files(actor.pid)
    actor.ask("exec /bin/sleep", answers=False)
    watcher.until(lambda: watcher.ends(actor.pid))
    assert watcher.files(child)
    os.kill(child, 9)
    watcher.until(lambda: watcher.ends(child))


def test_discovery_notices_dlclose(watcher: Watcher, actor: Actor, runtime: Path) -> None:
    actor.ask(f"load {runtime}")
    watcher.until(lambda: watcher.files(actor.pid))
    actor.ask("unload")
    watcher.until(lambda: watcher.files(actor.pid) == frozenset())
    actor.ask(f"load {runtime}")
    watcher.until(lambda: watcher.files(actor.pid))
    assert len(watcher.found(runtime)) == 1


def test_discovery_reads_a_deleted_file_and_lets_go_of_it(
    watcher: Watcher, actor: Actor, runtime: Path
) -> None:
    actor.ask(f"load {runtime}")
    runtime.unlink()
    watcher.until(lambda: watcher.files(actor.pid))
    (found,) = watcher.found(runtime) or watcher.found(f"{runtime} (deleted)")
    assert not Path(found.open_path).samefile("/")
    actor.end()
    watcher.until(lambda: watcher.gone(found.file))
    assert not Path(found.open_path).exists()


def test_discovery_plans_a_file_anew_that_was_written_in_place(
    watcher: Watcher, actor: Actor, runtime: Path, tmp_path: Path
) -> None:
    actor.ask(f"load {runtime}")
    watcher.until(lambda: watcher.found(runtime))
    actor.ask("unload")
    other = elf_kit.library(
        tmp_path / "other.so", source="int first(void) { return 1; }" + elf_kit.LIBRARY
    )
    runtime.write_bytes(other.read_bytes())
    actor.ask(f"load {runtime}")
    watcher.until(lambda: len(watcher.found(runtime)) == 2)
    before, after = watcher.found(runtime)
    assert watcher.gone(before.file)
    assert after.file != before.file
    assert after.plan != before.plan


@contextmanager
def _container(folder: Path) -> Iterator[int]:
    """Give the pid of /trainer, which lies in a file system of its own mount namespace."""
    built = _static(folder / "trainer")
    inside = folder / "root"
    inside.mkdir()
    script = (
        f"mount -t tmpfs tmpfs {inside} && cp {built} {inside} && exec chroot {inside} /trainer"
    )
    command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", script]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"up\n"
            yield process.pid
        finally:
            process.kill()


def test_discovery_finds_a_static_runtime_in_a_container(watcher: Watcher, tmp_path: Path) -> None:
    with _container(tmp_path) as pid:
        watcher.until(lambda: watcher.files(pid))
        (found,) = watcher.found("/trainer")
        assert Path(found.open_path).read_bytes() == (tmp_path / "trainer").read_bytes()
    watcher.until(lambda: watcher.ends(pid))


@contextmanager
def _library_in_container(program: Path, library: Path) -> Iterator[int]:
    """Give the pid of a process with /mnt/libcudart.so.12, which its own mounts alone have."""
    script = f'mount -t tmpfs tmpfs /mnt && cp {library} /mnt && exec "$0"'
    actor = Actor(program, "unshare", "--mount", "--propagation", "private", "sh", "-c", script)
    try:
        actor.ask(f"load /mnt/{library.name}")
        yield actor.pid
    finally:
        actor.end()


def test_discovery_finds_a_library_that_a_container_alone_has(
    watcher: Watcher, programs: tuple[Path, Path, Path], runtime: Path
) -> None:
    with _library_in_container(programs[0], runtime) as pid:
        watcher.until(lambda: watcher.files(pid))
        (found,) = watcher.found("/mnt/libcudart.so.12")
        assert Path(found.open_path).read_bytes() == runtime.read_bytes()


def test_discovery_counts_a_layer_of_two_containers_once(watcher: Watcher, tmp_path: Path) -> None:
    """Two overlay mounts show one inode under two devices; probes sit on the inode."""
    for folder in ("lower", "one", "two"):
        (tmp_path / folder).mkdir()
    _static(tmp_path / "lower" / "trainer")
    running = []
    try:
        for name in ("one", "two"):
            at = tmp_path / name
            layers = f"lowerdir={tmp_path / 'lower'}:{tmp_path / name}"
            script = f"mount -t overlay -o {layers} overlay {at} && exec {at}/trainer"
            running.append(
                subprocess.Popen(["unshare", "-m", "--propagation", "private", "sh", "-c", script])
            )
        watcher.until(lambda: all(watcher.files(process.pid) for process in running))
        files = [watcher.files(process.pid) for process in running]
        assert files[0] == files[1]
        assert len(watcher.found(tmp_path / "one/trainer")) + len(
            watcher.found(tmp_path / "two/trainer")
        ) == 1  # fmt: skip
    finally:
        for process in running:
            process.kill()
            process.wait()


def test_discovery_tells_a_pid_used_again(
    watcher: Watcher, programs: tuple[Path, Path, Path], runtime: Path
) -> None:
    program, reuse, _ = programs
    first = Actor(program)
    first.ask(f"load {runtime}")
    watcher.until(lambda: watcher.files(first.pid))
    modules = watcher.discovery.modules(*watcher.keys(first.pid))
    first.end()
    second = Actor(program, reuse, str(first.pid))
    try:
        second.ask(f"load {runtime}")
        watcher.until(lambda: watcher.ends(first.pid) and watcher.files(first.pid))
        early, late = watcher.keys(first.pid)
        assert watcher.discovery.modules(early) is modules  # still there, to name its last calls
        assert watcher.discovery.modules(late) is not modules
    finally:
        second.end()


class DeafRings:
    """Rings that lost everything."""

    def __init__(self) -> None:
        self.lost = 0

    @property
    def fds(self) -> list[int]:
        return []

    def take(self, plain: Container[bytes] = ()) -> list[Record]:
        return []

    def close(self) -> None:
        pass


def test_discovery_walks_again_when_records_were_lost(actor: Actor, runtime: Path) -> None:
    rings = DeafRings()
    watcher = Watcher(Discovery(BOOK, rings=rings, walk_every_ns=0))
    watcher.poll()
    actor.ask(f"load {runtime}")
    watcher.poll()
    assert not watcher.found(runtime)
    rings.lost = 7
    watcher.until(lambda: watcher.files(actor.pid))
    watcher.discovery.close()


def test_discovery_holds_to_its_bounds(actor: Actor, runtime: Path, tmp_path: Path) -> None:
    rings = DeafRings()
    watcher = Watcher(Discovery(BOOK, rings=rings, most_processes=0, walk_every_ns=0))
    watcher.discovery.found.most_held = 0
    actor.ask(f"load {runtime}")
    watcher.poll()
    assert not watcher.events
    assert not watcher.discovery.found.holds
    watcher.discovery.found.most_held = 1
    second = Path(shutil.copy(runtime, tmp_path / "libcudart.so.13"))
    actor.ask(f"load {second}")
    rings.lost = 1
    watcher.until(lambda: watcher.discovery.found.holds)
    assert not watcher.files(actor.pid)
    watcher.discovery.close()


def test_discovery_thread_hands_over_files_and_events(actor: Actor, runtime: Path) -> None:
    files: list[FileFound | FileGone] = []
    thread = DiscoveryThread(Discovery(BOOK), files.append)
    thread.start()
    events = Watcher(thread.discovery)
    actor.ask(f"load {runtime}")
    patience = time.monotonic() + 20
    while not events.files(actor.pid):
        assert time.monotonic() < patience
        time.sleep(0.01)
        events.events += thread.take()
    thread.stop()
    thread.stop()
    assert events.found(runtime)[0] in files


AGENT = """
import sys, time
from collectors.gpu_calls.discovery import Discovery
from tests.collectors.gpu_calls.test_discovery import BOOK
from tests.collectors.gpu_calls.process_actor import Watcher
from transport.process.privileges import AGENT_USER, CAPABILITIES, drop_to, ensure_users
CAPABILITIES["CAP_SYS_PTRACE"] = 19  # for a process that holds no keys
ensure_users()
drop_to(AGENT_USER, keep_caps=sys.argv[2:])
from collectors.interface import SourceUnavailable
try:
    watcher = Watcher(Discovery(BOOK))
except SourceUnavailable as error:
    print("absent", error)
    sys.exit()
watcher.poll()
print("found", len(watcher.files(int(sys.argv[1])) or ()))
"""


def _as_agent(pid: int, *capabilities: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", AGENT, str(pid), *capabilities],
        capture_output=True, text=True, timeout=60, check=False, cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_discovery_needs_two_capabilities(programs: tuple[Path, Path, Path], runtime: Path) -> None:
    """CAP_PERFMON for the rings, CAP_SYS_PTRACE for other mount namespaces."""
    with _library_in_container(programs[0], runtime) as pid:
        assert _as_agent(pid, "CAP_PERFMON", "CAP_SYS_PTRACE") == "found 1"
        assert _as_agent(pid, "CAP_PERFMON") == "found 0"
        assert "expected CAP_PERFMON" in _as_agent(pid, "CAP_SYS_PTRACE")


def test_discovery_holds_no_more_modules_than_its_bound(actor: Actor, runtime: Path) -> None:
    """4,096 processes of 8,192 mappings each are 10 GB: whoever has most is let go of."""
    watcher = Watcher(Discovery(BOOK, rings=DeafRings(), walk_every_ns=0))
    actor.ask(f"load {runtime}")
    watcher.until(lambda: watcher.files(actor.pid))
    watcher.discovery.most_modules = 1
    watcher.until(lambda: not watcher.files(actor.pid))
    key = process_key("/proc", actor.pid)
    assert key is not None
    assert watcher.discovery.modules(key) is None
    watcher.discovery.close()


def test_discovery_leaves_descriptors_to_the_rest_of_the_agent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda _kind: (1024, 1024))
    discovery = Discovery(BOOK, rings=DeafRings())
    assert discovery.most_processes == 256
    assert discovery.found.most_held == 128


class BrokenRings(DeafRings):
    """Rings whose records end the discovery."""

    def __init__(self) -> None:
        super().__init__()
        self.bell = os.eventfd(0)

    @property
    def fds(self) -> list[int]:
        return [self.bell]

    def close(self) -> None:
        os.close(self.bell)

    def take(self, plain: Container[bytes] = ()) -> list[Record]:
        if self.lost:
            raise RuntimeError("broken")
        return []


def test_discovery_thread_that_ended_is_an_error_and_not_silence() -> None:
    rings = BrokenRings()
    thread = DiscoveryThread(Discovery(BOOK, rings=rings), lambda _file: None)
    thread.start()
    assert thread.take() is not None
    rings.lost = 1
    os.eventfd_write(rings.bell, 1)
    thread._thread.join(20)
    with pytest.raises(SourceUnavailable, match="discovery ended: RuntimeError"):
        thread.take()
    thread.stop()


def test_discovery_thread_that_rests_ends_when_told() -> None:
    rings = BrokenRings()
    thread = DiscoveryThread(Discovery(BOOK, rings=rings), lambda _file: None)
    thread.start()
    ending = threading.Thread(target=thread.stop, daemon=True)
    ending.start()
    ending.join(10)
    assert not thread.alive


def test_found_file_made_to_look_like_a_layers_is_not_taken_for_it(
    runtime: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Number, size, time and build id can be had: a copy must not keep probes off the real one."""
    copy = Path(shutil.copy(runtime, tmp_path / "libcudart.so.13"))
    monkeypatch.setattr(MappedFile, "_look", lambda _self: FileIdentity(1, 1, 1))
    monkeypatch.setattr("collectors.binaries.proc_maps._file_system", lambda _fd: 0x794C7630)
    found = FoundFiles(BOOK)
    seen = []
    for path in (copy, runtime):
        of = path.stat()
        key = ((os.major(of.st_dev), os.minor(of.st_dev)), of.st_ino)
        seen += found.see(os.getpid(), Module(0, 4096, 0, key, str(path)), 0, 1, 1)
    assert [event.path for event in seen if isinstance(event, FileFound)] == [
        str(copy), str(runtime)
    ]  # fmt: skip
    found.close()
