"""Operators of a demo, and its roster: made by the tools that enrol a real fleet."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

from aggregator.enrolment.enrolment import Enrolment, check_request
from aggregator.enrolment.roster_draft import draft_roster
from aggregator.enrolment.roster_review import RosterEvidence
from aggregator.enrolment.task_files import check_and_countersign, leader_sign
from aggregator.enrolment.tasks import sign_task
from privacy.signing import SigningKey
from simulator.simulated_hosts import memberships
from transport.files.join_token import JoinToken
from wire import labels
from wire.envelope import Signed
from wire.join import JoinRequest
from wire.task import Task

_PLAN: Final = "demo"
_TOKEN_S: Final = 3600


class DemoEnrolment:
    """Vouches for hosts by their operator's number, and enrols those that ask."""

    def __init__(self, leader: SigningKey, helper: SigningKey) -> None:
        self._leader, self._helper = leader, helper
        self._operators: dict[str, SigningKey] = {}

    def token(self, operator: int) -> JoinToken:
        """Have an operator vouch for one more host."""
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
        made = draft_roster(None, enrolment.plans, requests, 0)
        if made.refused:
            raise ValueError(f"expected every host of the demo to join, got {made.refused[0]}")
        body = made.roster.encode_body()
        draft = leader_sign(Signed(labels.ROSTER, body).encode(), self._leader)
        served = [sign_task(task, self._leader, self._helper)[1] for task in tasks]
        evidence = RosterEvidence((), served, b"".join(raw), pins, first=True)
        signed, _ = check_and_countersign(draft, leader_pk, self._helper, evidence=evidence)
        return signed
