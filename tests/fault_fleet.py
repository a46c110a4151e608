"""A fleet of real agents, a Leader with its store and a Helper, between whom faults can be put.

What a host truly counted and the noise that it drew are written down beside it, by the host, so
that they outlive its process; the oracle holds the releases against them.
"""

from __future__ import annotations

import json
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast
from unittest import mock

import numpy as np
from numpy.typing import NDArray

from aggregator.helper.helper_state import FencedOut
from aggregator.party.config import LeaderConfig
from aggregator.protocol.directory import PinnedParties
from aggregator.protocol.interfaces import HelperPort, HelperUnavailable
from aggregator.protocol.released import ReleasedWindow
from aggregator.releases.store import Store
from aggregator.state.state_file import StorageUnavailable
from collectors.records.activity import KernelActivity
from edge_agent.agent_runtime import AgentRuntime
from edge_agent.clock import Clock
from edge_agent.ledger.ledger_db import read_view
from edge_agent.ledger.left_reports import Fate, read_left
from edge_agent.protocol import participant
from edge_agent.windows.window_accumulator import ClosedWindow
from privacy.noise_table import SeededSampler
from tests.fault_oracle import EncodedSteps, Evidence, SealedReport, Verdict, judge
from tests.outage_kit import CATALOGUE, HOSTS, OutageFleet
from tests.tampering import Tamper, TamperedLog
from transport.factory import TransportTable
from transport.interface import Transport
from transport.process.supervision import SteadyTime

STEP_S = 5.0


class NotedHost:
    """One host's noise, seeded; true steps and noise are noted in a file as it is drawn."""

    seeded = True

    def __init__(self, path: Path, seed: int, encoded: EncodedSteps) -> None:
        self._path, self._sampler, self._encoded = path, SeededSampler(seed), encoded
        self.closing_s = 0

    def sample(self, hosts: int, sigma_1024: NDArray[np.int64]) -> NDArray[np.int64]:
        noise = self._sampler.sample(hosts, sigma_1024)
        (true,), (drawn,) = self._encoded.last.tolist(), noise.tolist()
        with self._path.open("a") as file:
            file.write(json.dumps([self.closing_s, true, drawn]) + "\n")
        return noise


class NotingStore(Store):
    def __init__(self, config: LeaderConfig, written: list[ReleasedWindow]) -> None:
        super().__init__(config.database, config.releases_dir, CATALOGUE)
        self._written = written

    def write(self, release: ReleasedWindow) -> None:
        super().write(release)
        self._written.append(release)


class ServedHelper:
    """The Helper that serves now, as over a channel: what ends a call there is no answer here."""

    def __init__(self, fleet: FaultFleet) -> None:
        self._fleet = fleet

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def asked(*given: Any, **named: Any) -> Any:
            try:
                return getattr(self._fleet.helper, name)(*given, **named)
            except (StorageUnavailable, FencedOut) as error:
                raise HelperUnavailable(str(error)) from error

        return asked


class SkewedClock:
    def __init__(self, inner: Clock, ahead_ms: Callable[[], int]) -> None:
        self._inner, self._ahead_ms = inner, ahead_ms

    def unix_ms(self) -> int:
        return self._inner.unix_ms() + self._ahead_ms()

    def boottime_ns(self) -> int:
        return self._inner.boottime_ns()

    def sleep_ms(self, span_ms: int) -> None:
        self._inner.sleep_ms(span_ms)


class FaultFleet(OutageFleet):
    """HOSTS agents that count kernels, and the parties; tests bend what lies between them.

    ahead_s     role (`leader`, `helper`, `host-N`) -> how far its clock is ahead
    tamper      what becomes of each record that an agent sends; None: it is left alone
    """

    def __init__(
        self,
        folder: Path,
        *,
        log: TransportTable | None = None,
        window_s: int = 60,
        windows: int = 3,
        lateness_s: int = 30,
        bend: Callable[[HelperPort], HelperPort] = lambda port: port,
    ) -> None:
        """Start everybody.

        bend    stands between the Leader and the Helper
        """
        self.ahead_s: dict[str, float] = defaultdict(float)
        self.tamper: Tamper | None = None
        self.written: list[ReleasedWindow] = []
        self.refused: Counter[str] = Counter()
        self._noted: dict[int, NotedHost] = {}
        self._encoded = EncodedSteps()
        self._noting = mock.patch.object(participant, "encode_rows", self._encoded.encode)
        self._noting.start()
        self._bend = bend
        super().__init__(
            folder,
            log or TransportTable(folder / "log"),
            window_s=window_s,
            windows=windows,
            lateness_s=lateness_s,
            sampler=self._noted_host,
        )

    @property
    def end_s(self) -> int:
        return self.task.last_window + self.task.window_s

    def _noted_host(self, number: int) -> NotedHost:
        self._noted[number] = NotedHost(self._noted_file(number), number, self._encoded)
        return self._noted[number]

    def _noted_file(self, number: int) -> Path:
        return self.folder / f"host-{number}-drawn.jsonl"

    def party_clock(self, party: str) -> Callable[[], float]:
        """Steady, as that of a party's process is."""
        return SteadyTime(lambda: self.now_s() + self.ahead_s[party], self.now_s)

    def agent_clock(self, number: int) -> Clock:
        return SkewedClock(self.stepped, lambda: round(1000 * self.ahead_s[f"host-{number}"]))

    def make_store(self, config: LeaderConfig) -> Store:
        return NotingStore(config, self.written)

    def helper_port(self) -> HelperPort:
        return self._bend(cast("HelperPort", ServedHelper(self)))

    def agent_log(self, number: int, log: Transport) -> Transport:
        return cast(
            "Transport", TamperedLog(super().agent_log(number, log), number, lambda: self.tamper)
        )

    def agent(
        self, number: int, fault_point: Callable[[str], None] = lambda _point: None
    ) -> AgentRuntime:
        runtime = super().agent(number, fault_point)
        noted, close_ended = self._noted[number], runtime.windows.close_ended

        def noting(now_s: int) -> Iterator[ClosedWindow]:
            runtime.windows.add(_launches(number, self.stepped.boottime_ns()))
            for closed in close_ended(now_s):
                noted.closing_s = closed.start_s
                yield closed

        runtime.windows.close_ended = noting  # type: ignore[method-assign]
        return runtime

    def stop_leader(self) -> None:
        self.refused += self.leader._leader.rejected
        super().stop_leader()

    def all_refused(self) -> Counter[str]:
        return self.refused + self.leader._leader.rejected

    def close(self) -> None:
        super().close()
        self._noting.stop()

    def recover(self, most_s: int = 120) -> None:
        """Go on no faster than real time until every host has sent what it sealed.

        Clients of a real broker reconnect in real seconds; windows of a faster clock would be over.
        """
        for _ in range(most_s):
            self.run_to(self.now_s() + 1)
            if not any(
                report.waits for number in range(HOSTS) for report in self.sealed_by(number)
            ):
                return
            time.sleep(1)
        raise AssertionError(f"hosts did not send within {most_s} s")

    def finish(self, after_s: float = 100.0) -> Verdict:
        self.run_to(self.end_s + after_s, step_s=STEP_S)
        return self.judge()

    def judge(self) -> Verdict:
        verdict = judge(self.evidence())
        assert not verdict.problems, verdict.problems
        return verdict

    def evidence(self) -> Evidence:
        left_out: Counter[str] = Counter()
        for release in {w.window_start_s: w for w in self.written}.values():
            left_out += Counter(release.rejections)
        return Evidence(
            [report for number in range(HOSTS) for report in self.sealed_by(number)],
            frozenset(self._spent()),
            [(w.window_start_s, tuple(w.vector.tolist())) for w in self.written],
            self.leader_folder() / "leader.sqlite",
            self.helper_folder() / "helper.sqlite",
            PinnedParties(self.world.leader.pk, self.world.helper.pk),
            self.all_refused(),
            left_out,
        )

    def _spent(self) -> Iterator[tuple[bytes, int]]:
        for number in range(HOSTS):
            for host in read_view(self.agent_config(number).ledger_file).hosts:
                yield from ((bytes(host.host_id), entry.start) for entry in host.entries)

    def sealed_by(self, number: int) -> Iterator[SealedReport]:
        """What a host sealed, as its ledger tells its owner, with what it noted."""
        lines = map(json.loads, self._noted_file(number).read_text().splitlines())
        noted = {window: (true, noise) for window, true, noise in lines}
        for left in read_left(self.agent_config(number).ledger_file).reports:
            true, noise = noted[left.window]
            gone = "" if left.fate in (Fate.SENT, Fate.WAITS) else left.fate.value
            yield SealedReport(
                left.report_id, left.host_id, left.window,
                np.array(true, dtype=np.int64), np.array(noise, dtype=np.int64),
                gone, left.fate is Fate.WAITS,
            )  # fmt: skip


def _launches(number: int, now_ns: int) -> KernelActivity:
    """Some launches of a kernel; of each host others, and the more the longer a window is."""
    time_ns = 100_000_000 * (number + 1)
    return KernelActivity(0, "k", "gemm", "other", 1, time_ns, ((26, 1),), 1_000_000, now_ns)
