"""A demo's tasks, its operators and its roster, made by the tools that enrol a real fleet.

One run spends the whole epsilon, half of it on the kernel mix.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from aggregator.enrolment.enrolment import Enrolment, check_request
from aggregator.enrolment.roster_draft import draft_roster
from aggregator.enrolment.roster_review import RosterEvidence
from aggregator.enrolment.tasks import (
    TaskPlan,
    build_task,
    check_and_countersign,
    leader_sign,
    sign_task,
)
from privacy.signing import SigningKey
from simulator.simulated_hosts import memberships
from transport.files.private_files import JoinToken
from wire import labels
from wire.catalogue import Catalogue
from wire.envelope import Signed
from wire.join import JoinRequest
from wire.roster import FleetName
from wire.task import DEMO_DOMAIN, Task

WINDOW_S: Final = 5
RETENTION_S: Final = 120
"""So short that no window waits for late hosts as a fleet's do after an outage of the log: the demo
is over by then. A window that lost too many of its reports is suppressed; the others come."""
EXPIRY_S: Final = 600
GPUS_PER_HOST: Final = 8
OPERATORS: Final = 10
MIX_SERIES: Final = "demo-mix"
MIX_WEIGHTS: Final = {
    "kernel_mix": 500_000,
    "application_mix": 100_000,
    "kernel_duration": 50_000,
    "host_cpu": 10_000,
}
EVENTS: Final = ("incidents", "hardware_faults", "applications_seen")
ONE_WINDOW_SERIES: Final = {
    "demo-week": {"incidents": 100_000},
    "demo-eight-weeks": {"hardware_faults": 100_000},
    "demo-hour": {
        "gpu_temperature": 10_000,
        "gpu_power": 10_000,
        "gpu_utilisation": 10_000,
        "gpu_memory": 10_000,
    },
    "demo-day": {"applications_seen": 100_000},
}
"""Series of one window each, in the order of these windows. One window of little weight has far
less noise than each of many: the pages show a table or a histogram that can be read."""
_PLAN: Final = "demo"
_TOKEN_S: Final = 3600


@dataclass(frozen=True, slots=True)
class DemoPlan:
    """What the person asked for.

    hosts     simulated hosts, played by some processes; `live` adds this host
    windows   of WINDOW_S seconds
    trace     a Kineto trace that plays as this host's GPU activity, or None
    kafka     host:port of the broker that carries everything, or None: the embedded log
    """

    hosts: int
    windows: int
    live: bool
    processes: int = 2
    opendp_hosts: int = 0
    seed: int | None = None
    dropout: float = 0.0
    trace: Path | None = None
    kafka: str | None = None

    @property
    def roster(self) -> int:
        return self.hosts + self.live

    @property
    def gpus(self) -> int:
        return self.hosts * GPUS_PER_HOST

    @property
    def n_min(self) -> int:
        return math.ceil(0.8 * self.hosts)

    @property
    def corrupted(self) -> int:
        """A tenth of the roster, which is also its largest operator."""
        return math.ceil(self.roster / OPERATORS)

    def tasks(
        self,
        catalogue: Catalogue,
        first_window: int,
        lateness_s: int,
        leader_pk: bytes,
        helper_pk: bytes,
    ) -> list[Task]:
        """Build the mix task, and those of a single window.

        They have a window each, from the second on: the pages show them within the first minute.
        Reports of all series at once would be four times the work, and on a busy machine
        late.
        """
        last = first_window + WINDOW_S * (self.windows - 1)
        spans = {MIX_SERIES: (first_window, last, MIX_WEIGHTS)}
        for place, (series, weights) in enumerate(ONE_WINDOW_SERIES.items(), 1):
            only = min(first_window + place * WINDOW_S, last)
            spans[series] = (only, only, weights)
        return [
            build_task(
                catalogue,
                TaskPlan(
                    series=series,
                    domain=DEMO_DOMAIN,
                    window_s=WINDOW_S,
                    first_window=first,
                    last_window=final,
                    lateness_s=lateness_s,
                    retention_s=RETENTION_S,
                    weights=weights,
                    gpus_per_host=GPUS_PER_HOST,
                    n_max=self.roster,
                    n_min=self.n_min,
                    t=self.corrupted,
                    largest_operator=self.corrupted,
                    leader_pk=leader_pk,
                    helper_pk=helper_pk,
                    expiry=last + EXPIRY_S,
                ),
            )
            for series, (first, final, weights) in spans.items()
        ]


def lateness_s(started_s: float) -> int:
    """Give how long a window waits for its reports, from how long the fleet took to start.

    Two seconds do where two cores start it in two. A machine that is slower, or busy with other
    work, is given longer: there all reports would be late, and the window lost.
    """
    return min(max(2, math.ceil(started_s)), 8)


class DemoEnrolment:
    def __init__(self, leader: SigningKey, helper: SigningKey) -> None:
        self._leader, self._helper = leader, helper
        self._operators: dict[str, SigningKey] = {}

    def token(self, operator: int) -> JoinToken:
        name = f"operator-{operator}"
        if name not in self._operators:
            self._operators[name] = SigningKey.generate()
        not_after = int(time.time()) + _TOKEN_S
        leader_pk = self._leader.public_bytes
        return JoinToken.issue(self._operators[name], name, _PLAN, leader_pk, not_after)

    def roster(self, raw: Sequence[bytes], tasks: Sequence[Task]) -> bytes:
        """Enrol hosts for some tasks, and have the roster signed by both parties.

        raw         join requests
        Raises      ReportRejected
        """
        pins = {name: frozenset({key.public_bytes}) for name, key in self._operators.items()}
        enrolment = Enrolment({_PLAN: memberships(tasks)}, pins)
        leader_pk, now_s = self._leader.public_bytes, time.time()
        requests = {f"host {n}": JoinRequest.decode(request) for n, request in enumerate(raw)}
        for request in requests.values():
            check_request(request, enrolment, leader_pk, now_s)
        fleet = FleetName(leader_pk, self._helper.public_bytes, "demo")
        made = draft_roster(None, enrolment.plans, requests, 0, fleet=fleet)
        if made.refused:
            raise ValueError(f"expected every host of the demo to join, got {made.refused[0]}")
        body = made.roster.encode_body()
        draft = leader_sign(Signed(labels.ROSTER, body).encode(), self._leader)
        served = [sign_task(task, self._leader, self._helper)[1] for task in tasks]
        evidence = RosterEvidence((), served, b"".join(raw), pins, first=True)
        signed, _ = check_and_countersign(draft, leader_pk, self._helper, evidence=evidence)
        return signed
