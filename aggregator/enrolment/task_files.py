"""Tasks and rosters as files: draft, the Leader's signature, the Helper's, and the folder read."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from aggregator.protocol.directory import PinnedParties
from privacy import calibrate
from privacy.calibrate import ParameterError
from privacy.signing import SigningKey, verify
from wire import labels
from wire.envelope import SIGNED_OVERHEAD_BYTES, Signed
from wire.fields import MAX_ROSTER_BODY, NO_SIGNATURE, Scheme, task_id
from wire.rejection import Reason, ReportRejected
from wire.roster import EntryAnswer, Roster
from wire.task import Task

from .roster_review import NO_EVIDENCE, RosterEvidence, review_roster
from .tasks import countersign


def label_of(content: bytes) -> bytes:
    """Which of the signed messages a file holds.

    Raises      ReportRejected for any other
    """
    for label in (labels.TASK, labels.ROSTER, labels.ENTRY_ANSWER):
        if content[:16] == label:
            return label
    raise ReportRejected(Reason.VERSION, "a task, roster or entry answer", content[:16].hex())


def leader_sign(content: bytes, leader: SigningKey) -> bytes:
    """Put the Leader's signature under a draft; a Helper's signature does not survive it."""
    signed = Signed.decode(content, label_of(content))
    signature = leader.sign(signed.unsigned())
    return Signed(signed.label, signed.body, signature).encode()


def check_and_countersign(
    content: bytes,
    leader_pk: bytes,
    helper: SigningKey,
    *,
    evidence: RosterEvidence = NO_EVIDENCE,
    now_s: float | None = None,
    tell: Callable[[Mapping[str, int | float]], None] = lambda _: None,
) -> tuple[bytes, dict[str, Any]]:
    """Check the Leader's signature and the contents, then sign.

    evidence    what a roster is held against
    tell        is given a roster's counts before anything is signed or refused for them
    Returns     (signed bytes, what was signed, in words)
    Raises      ReportRejected, ParameterError
    """
    label = label_of(content)
    signed = Signed.decode(content, label)
    if not verify(leader_pk, signed.unsigned(), signed.sig_leader):
        reason = Reason.TASK_SIGNATURE if label == labels.TASK else Reason.ROSTER_SIGNATURE
        raise ReportRejected(reason, "the pinned Leader's signature", "another")
    said: dict[str, Any] = {}
    body = _decoded(label, signed.body)
    if isinstance(body, Task):
        check_task_noise(body)
        if (body.leader_pk, body.helper_pk) != (leader_pk, helper.public_bytes):
            raise ReportRejected(Reason.TASK_SIGNATURE, "this Leader and Helper", "others")
    elif isinstance(body, Roster):
        parties = PinnedParties(leader_pk, helper.public_bytes)
        now_s = time.time() if now_s is None else now_s
        said |= review_roster(body, evidence, parties, now_s, tell)
    both = countersign(content, label, helper)
    return both, _summary(Signed.decode(both, label), body) | said


def check_task_noise(task: Task) -> None:
    """Recompute every section's noise from the task's own numbers.

    Raises      ParameterError naming the bound
    """
    if calibrate.gdp_mu_1e9(task.epsilon_millionths, task.delta_1e12) < task.mu_1e9:
        raise ParameterError("mu", "what epsilon and delta allow", task.mu_1e9)
    local = task.scheme is Scheme.LOCAL
    honest = 1 if local else calibrate.honest_hosts(task.n_max, task.n_min, task.t)
    touched = calibrate.windows_touched(task.window_s, task.windows)
    for section in task.sections:
        delta_sq = calibrate.sensitivity_sq_steps(
            section.coordinate_cap, section.l1_bound, section.q
        )
        least = calibrate.sigma_local_1024(
            delta_sq, touched, section.weight_millionths, task.mu_1e9, honest
        )
        if section.sigma_1024 < least:
            raise ParameterError(
                f"sigma of {section.name}", f"at least {least}/1024 steps", section.sigma_1024
            )
        calibrate.check_catalogue_sigma(section.sigma_1024)
        if not local:
            calibrate.check_modulus(task.n_max, section.cap_steps, section.sigma_1024)


def summary(content: bytes) -> dict[str, Any]:
    """What a signed file says, for people and scripts."""
    label = label_of(content)
    signed = Signed.decode(content, label)
    return _summary(signed, _decoded(label, signed.body))


_Body = Task | Roster | EntryAnswer


def _decoded(label: bytes, body: bytes) -> _Body:
    """Decode once: a task takes longer than its signature."""
    if label == labels.ROSTER:
        return Roster.decode_body(body)
    return EntryAnswer.decode_body(body) if label == labels.ENTRY_ANSWER else Task.decode_body(body)


def _summary(signed: Signed, body: _Body) -> dict[str, Any]:
    signatures = {
        "signed_by_leader": signed.sig_leader != NO_SIGNATURE,
        "signed_by_helper": signed.sig_helper != NO_SIGNATURE,
    }
    match body:
        case Roster():
            return _roster_summary(body) | signatures
        case EntryAnswer():
            found = {"kind": "entry", "host_id": body.entry.host_id.hex()}
            return found | {"roster_version": body.roster_version} | signatures
        case Task():
            return _task_summary(body, task_id(signed.unsigned())) | signatures


def _roster_summary(roster: Roster) -> dict[str, Any]:
    operators: dict[str, int] = {}
    for entry in roster.entries:
        operators[entry.operator] = operators.get(entry.operator, 0) + 1
    return {
        "kind": "roster",
        "version": roster.version,
        "effective_from": roster.effective_from,
        "hosts": len(roster.entries),
        "operators": len(operators),
        "largest_operator": max(operators.values(), default=0),
    }


def _task_summary(task: Task, identity: bytes) -> dict[str, Any]:
    sections: list[Mapping[str, Any]] = [
        {
            "name": section.name,
            "kind": section.kind.value,
            "length": section.length,
            "weight": section.weight_millionths / 10**6,
            "sigma_steps": section.sigma_1024 / 1024,
            "bound_steps": section.bound_steps,
        }
        for section in task.sections
    ]
    return {
        "kind": "task",
        "task_id": identity.hex(),
        "series": task.series,
        "version": task.version,
        "domain": task.domain,
        "scheme": task.scheme.value,
        "leader": task.leader_pk.hex(),
        "helper": task.helper_pk.hex() or None,
        "window_s": task.window_s,
        "first_window": task.first_window,
        "last_window": task.last_window,
        "windows_per_week": calibrate.windows_touched(task.window_s, task.windows),
        "epsilon": task.epsilon_millionths / 10**6,
        "delta": task.delta_1e12 / 10**12,
        "n_max": task.n_max,
        "n_min": task.n_min,
        "t": task.t,
        "min_operators": task.min_operators,
        "expiry": task.expiry,
        "d": task.d,
        "sections": sections,
    }


TASK_SUFFIX = ".task"
ROSTER_SUFFIX = ".roster"
ENTRY_SUFFIX = ".entry"
MAX_FILE_BYTES = MAX_ROSTER_BODY + SIGNED_OVERHEAD_BYTES


class SignedFolder:
    """`NAME.roster` and `NAME.task` files; rosters come first, each file once per content."""

    def __init__(self, folder: Path, *, entries: bool = False) -> None:
        """Look into `folder`; `entries` asks for `NAME.entry` files too, after the others."""
        self._folder = folder
        self._suffixes = (ROSTER_SUFFIX, TASK_SUFFIX, *([ENTRY_SUFFIX] if entries else []))
        self._seen: dict[Path, tuple[int, int]] = {}

    def new_files(self) -> Iterator[tuple[Path, bytes]]:
        """Files that are new or changed, rosters before tasks, by version, then by name."""
        for suffix in self._suffixes:
            yield from sorted(self._changed(suffix), key=lambda found: (_version(*found), found[0]))

    def _changed(self, suffix: str) -> Iterator[tuple[Path, bytes]]:
        for path in self._folder.glob(f"*{suffix}"):
            if not path.is_file():  # a pipe would be waited for
                continue
            status = path.stat()
            mark = (status.st_mtime_ns, status.st_size)
            if self._seen.get(path) == mark or status.st_size > MAX_FILE_BYTES:
                continue
            content = path.read_bytes()  # one that cannot be read is looked at again
            self._seen[path] = mark
            yield path, content


def _version(path: Path, content: bytes) -> int:
    """The version a file says it has: only an order, for nothing is verified yet."""
    try:
        if path.suffix == TASK_SUFFIX:
            return Task.decode_body(Signed.decode(content, labels.TASK).body).version
        if path.suffix == ENTRY_SUFFIX:
            return 0
        return Roster.decode_body(Signed.decode(content, labels.ROSTER).body).version
    except ReportRejected:
        return 0
