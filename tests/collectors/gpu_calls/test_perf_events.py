"""Probes by perf events, as on kernels without uprobe_multi: exact, by few rights, and few of them.

This kernel makes both; make test-all has kernels that make perf events alone.
"""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from collectors.binaries.elf_file import EntryClass
from collectors.bpf import perf_events
from collectors.bpf.perf_events import EventOpener, open_uprobe, perf_event_open
from collectors.bpf.system_calls import PerfEventAttributes
from collectors.bpf.uprobes import UprobeWay
from collectors.gpu_calls.governor import SECOND, Governor, GovernorSettings, ProbeLoad
from collectors.gpu_calls.probe_plan import Attachment, few
from collectors.records.basics import ProcessKey
from collectors.records.gpu_calls import FileGroup, ProbeGroup
from tests.closed_kit import closed, let_in
from tests.probes_kit import Probed, Stubs, probing, run


@pytest.fixture
def by_events() -> Iterator[Probed]:
    with probing(way=UprobeWay.EVENTS) as probed:
        yield probed


def chosen(probed: Probed, path: Path, *groups: ProbeGroup) -> None:
    """Attach few places: each takes a tenth of a second to let go."""
    others = [group for group in ProbeGroup if group not in groups]
    probed.attach(path, *others)


@pytest.mark.release
@pytest.mark.root
@pytest.mark.kernel
def test_launches_nested_ones_and_waits_are_counted_exactly(
    by_events: Probed, stubs: Stubs
) -> None:
    for name in ("libcudart", "libcuda.so"):
        chosen(by_events, stubs.library(name), ProbeGroup.LAUNCH)
    run(stubs.caller("libcudart", "libcuda.so"), "nested", 997)
    by_events.drain()
    assert by_events.calls() == {"cudart.launch": 997, "cuda.launch": 997}
    assert by_events.calls("nested") == {"cuda.launch": 997}


@pytest.mark.root
@pytest.mark.kernel
def test_counting_of_launches_ends_before_their_places_are_let_go(
    by_events: Probed, stubs: Stubs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A window that has ended counts nothing more, though letting go takes seconds."""
    chosen(by_events, stubs.library("libcudart"), ProbeGroup.LAUNCH)
    caller = stubs.caller("libcudart")
    run(caller, "threads", 1, 31)
    let_go = by_events.programs._unlink

    def launches_between(file_group: FileGroup) -> None:
        run(caller, "threads", 1, 1009)
        let_go(file_group)

    monkeypatch.setattr(by_events.programs, "_unlink", launches_between)
    by_events.programs.detach_all([FileGroup(1, ProbeGroup.LAUNCH)])
    by_events.drain()
    assert by_events.calls() == {"cudart.launch": 31}


SCRIPT = """
import sys
from pathlib import Path
from collectors.bpf.perf_events import begin_opener
from collectors.bpf.uprobes import UprobeWay
from collectors.interface import SourceUnavailable
from collectors.records.gpu_calls import ProbeGroup
from tests.probes_kit import probing, run
from transport.process.privileges import AGENT_USER, drop_to, ensure_users
library, caller, opener = sys.argv[1:]
ensure_users()
if opener == "opener":
    begin_opener()
drop_to(AGENT_USER, keep_caps=["CAP_BPF", "CAP_PERFMON"])
try:
    with probing(way=UprobeWay.EVENTS) as probed:
        probed.attach(Path(library), *(one for one in ProbeGroup if one is not ProbeGroup.LAUNCH))
        run(Path(caller), "threads", 2, 401)
        probed.drain()
        print("counted", sum(probed.launches().values()))
except SourceUnavailable as error:
    print("absent", error)
"""


@pytest.mark.release
@pytest.mark.root
@pytest.mark.kernel
@pytest.mark.parametrize(
    ("opener", "said"),
    [
        ("opener", "counted 802\n"),
        ("none", "cannot attach to"),
    ],
)
def test_the_agents_user_counts_by_a_child_that_opens_events(
    opener: str, said: str, stubs: Stubs
) -> None:
    let_in(stubs.folder)
    paths = [stubs.library("libcudart"), stubs.caller("libcudart")]
    done = subprocess.run(
        closed([sys.executable, "-c", SCRIPT, *paths, opener]),
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
        timeout=60,
        check=False,
    )
    assert said in done.stdout, done.stderr


@pytest.fixture
def opener() -> Iterator[EventOpener]:
    made = EventOpener()
    yield made
    made.close()


@pytest.mark.root
@pytest.mark.kernel
def test_the_opener_holds_one_right_and_opens_nothing_else(
    opener: EventOpener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(perf_events, "_openers", [opener])
    clock = PerfEventAttributes(type=perf_events.SOFTWARE, sample_period=10_000_000)
    os.close(perf_event_open(clock, 0))
    status = Path(f"/proc/{opener.pid}/status").read_text(encoding="ascii")
    for rights in ("CapPrm", "CapEff", "CapBnd"):
        assert f"{rights}:\t{1 << 21:016x}\n" in status
    with pytest.raises(OSError, match="Invalid argument"):
        perf_event_open(PerfEventAttributes(type=0, config=0), 0)
    tracepoint = PerfEventAttributes(type=2, config=1)
    with pytest.raises(OSError, match="Invalid"), (tmp_path / "file").open("wb") as file:
        perf_event_open(tracepoint, 0, file.fileno())
    mine, its = socket.socketpair()
    with mine, its, pytest.raises(OSError, match="Invalid argument"):
        open_uprobe(mine.fileno(), 0, 0, returns=False)


@pytest.mark.root
@pytest.mark.kernel
def test_the_opener_survives_a_broken_message_and_ends_with_its_socket(opener: EventOpener) -> None:
    opener._socket.send(bytes(20))
    assert opener._socket.recv(16) == bytes(8) + errno.EINVAL.to_bytes(4, "little")
    os.close(opener.ask(PerfEventAttributes(type=perf_events.SOFTWARE, config=9), 0, None))
    opener._socket.shutdown(socket.SHUT_RDWR)
    assert os.waitid(os.P_PID, opener.pid, os.WEXITED | os.WNOWAIT) is not None


def places(group: ProbeGroup, count: int, *, returns: bool = False) -> Attachment:
    nothing = (0,) * count
    kinds = (EntryClass.EMULATED,) * count
    return Attachment(group, returns, tuple(range(count)), nothing, nothing, kinds)


def test_few_places_are_those_of_reports_while_there_is_room() -> None:
    plan = [
        places(ProbeGroup.COPY, 90),
        places(ProbeGroup.COPY, 90, returns=True),
        places(ProbeGroup.LAUNCH, 12),
        places(ProbeGroup.LAUNCH_RESULT, 12, returns=True),
        places(ProbeGroup.SYNCHRONISE, 6),
        places(ProbeGroup.SYNCHRONISE, 6, returns=True),
        places(ProbeGroup.MEMORY, 30),
    ]
    first = [(one.group, one.returns) for one in few(plan, 0)]
    assert first == [
        (ProbeGroup.LAUNCH, False),
        (ProbeGroup.SYNCHRONISE, False),
        (ProbeGroup.SYNCHRONISE, True),
        (ProbeGroup.COPY, False),
    ]
    assert [one.group for one in few(plan, 200)][-1] is ProbeGroup.SYNCHRONISE
    assert [one.group for one in few(plan, 365)] == [ProbeGroup.LAUNCH]
    assert few(plan, 384) == ()


def test_by_perf_events_launches_alone_take_turns() -> None:
    turns = frozenset({ProbeGroup.LAUNCH})
    governor = Governor(GovernorSettings(turns=turns), lambda most: most // 2)
    process = ProcessKey(7, 1)
    period = governor.period(0)
    for _ in range(6):
        loads = []
        for group, hits_a_second in ((ProbeGroup.LAUNCH, 40_000), (ProbeGroup.COPY, 500)):
            attached_ns = round(period.share(group) * (period.end_ns - period.begin_ns))
            hits = {process: hits_a_second * attached_ns // SECOND}
            loads.append(ProbeLoad(FileGroup(1, group), hits, attached_ns, 1e3, 0))
        period = governor.period(period.end_ns, loads)
        assert ProbeGroup.COPY in period.steady  # after a burst, too
    assert period.in_turns == turns
    assert ProbeGroup.COPY in period.steady
    assert 0.0 < period.duty < 0.2
