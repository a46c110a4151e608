"""The agent's own check of a task: it trusts no number that it can derive, and refuses by Reason.
The PLD check is a child's, with numbers alone: its libraries take 70 MB, asked once a task.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from threading import Thread, Timer
from typing import Final

from privacy import calibrate
from privacy.accountant import GATE_MARGIN, SectionNoise, gate
from privacy.errors import ParameterError
from privacy.signing import verify
from transport.process.privileges import interpreter
from wire import labels
from wire.catalogue import Catalogue, CatalogueError
from wire.catalogue_match import match_task
from wire.envelope import Signed
from wire.fields import NO_SIGNATURE, Scheme, TaskId, task_id
from wire.rejection import Reason, ReportRejected
from wire.task import DEMO_DOMAIN, SectionSpec, Task

FLEET_DOMAIN = "fleet"
OPERATOR_DOMAIN = "operator"
MIN_OPERATORS = 3

Gate = Callable[[Sequence[SectionNoise], int, int], float]
"""`privacy.accountant.gate`: raises ParameterError when a week costs more than its epsilon."""


@dataclass(frozen=True, slots=True)
class Pins:
    """Identity keys (Ed25519, 32 B) that this host trusts: Leaders with tasks of scheme `local`,
    and of its own operator, whose "operator" tasks alone are free of the operator rule.

    fleets  names that rosters must have; none: a pair's first that names its fleet binds the host
    """

    leaders: frozenset[bytes]
    helpers: frozenset[bytes]
    allow_local: frozenset[bytes] = frozenset()
    operators: frozenset[bytes] = frozenset()
    fleets: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        for key in self.leaders & self.helpers:
            got = f"{key.hex()[:16]}... in both"
            raise ValueError(f"helpers: expected a key in one role, leaders or helpers, got {got}")


N_MIN_AT_LEAST: Final = 400
"""The n_min of 500 hosts of which one in five may be away; only a trial asks for less."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """What this host accepts, whatever is signed; epsilon and delta must be equal.

    n_min_at_least, n_max_at_most   hosts; a huge n_min would make each host's noise small
    bound_steps_at_most             steps of a section's L1 bound: C and B of a lying plan
    """

    epsilon_millionths: int = calibrate.EPSILON_MILLIONTHS
    delta_1e12: int = calibrate.DELTA_1E12
    n_min_at_least: int = N_MIN_AT_LEAST
    n_max_at_most: int = 200_000
    bound_steps_at_most: int = 1 << 16
    d_at_most: int = 1 << 16


@dataclass(frozen=True, slots=True)
class Accepted:
    task_id: TaskId
    task: Task


def check_task(
    signed: bytes,
    pins: Pins,
    bounds: Bounds,
    *,
    now_s: int,
    domain_allowed: Callable[[str], bool],
    versions: Mapping[str, int] = {},
    others: Iterable[Task] = (),
    gate: Gate | None = None,
    catalogue: Catalogue | None = None,
) -> Accepted:
    """Check the bytes of a signed task.

    domain_allowed  says which domains this process serves
    versions        newest accepted version by series key, or by name where the Leader is unknown
    others          the other tasks this host serves
    gate            the PLD check of everything a week composes, or None
    catalogue       what every section must be as in, None to skip (simulations)
    Raises          ReportRejected
    """
    envelope = Signed.decode(signed, labels.TASK)
    task = verified_task(envelope, pins)
    if not domain_allowed(task.domain):
        reason = Reason.DEMO_TASK if DEMO_DOMAIN in task.domain else Reason.FIELD
        raise ReportRejected(reason, "a domain this agent serves", task.domain)
    if task.domain == OPERATOR_DOMAIN and task.leader_pk not in pins.operators:
        expected = "a fleet task, or a Leader pinned as this host's operator"
        raise ReportRejected(Reason.OPERATORS, expected, "another Leader's operator task")
    task.need_timely(now_s)
    newest = versions.get(task.series_key, versions.get(task.series, 0))
    if task.version < newest:
        raise ReportRejected(Reason.TASK_SUPERSEDED, f"version {newest} or later", task.version)
    _check_bounds(task, bounds, catalogue)
    h = _check_cohort(task, bounds)
    noises = [_check_section(task, section, h) for section in task.sections]
    served = [other for other in others if other.series_key != task.series_key]
    total = sum(s.weight_millionths for accepted in (task, *served) for s in accepted.sections)
    if total > 1_000_000:
        raise ReportRejected(Reason.WEIGHT, "weights of all tasks up to 1000000", total)
    if gate is not None:
        everything = [*noises, *(noise for other in served for noise in section_noises(other))]
        with _refusing(Reason.BUDGET):
            gate(everything, task.epsilon_millionths, task.delta_1e12)
    return Accepted(task_id(envelope.unsigned()), task)


def verified_task(envelope: Signed, pins: Pins) -> Task:
    """Decode a task, and verify that those signed it who had to. Raises ReportRejected."""
    task = Task.decode_body(envelope.body)
    message = envelope.unsigned()
    if task.leader_pk not in pins.leaders:
        raise ReportRejected(Reason.LEADER_UNPINNED, "a pinned Leader", task.leader_pk.hex()[:16])
    if not verify(task.leader_pk, message, envelope.sig_leader):
        raise ReportRejected(Reason.TASK_SIGNATURE, "the Leader's signature", "another")
    if task.scheme is Scheme.LOCAL:
        if task.leader_pk not in pins.allow_local:
            raise ReportRejected(Reason.LOCAL_NOT_ALLOWED, "allow_local to name it", "it does not")
        if envelope.sig_helper != NO_SIGNATURE:
            raise ReportRejected(Reason.TASK_SIGNATURE, "no Helper in scheme local", "a signature")
        return task
    if task.helper_pk not in pins.helpers or task.helper_pk == task.leader_pk:
        raise ReportRejected(Reason.HELPER_UNPINNED, "a pinned Helper", task.helper_pk.hex()[:16])
    if not verify(task.helper_pk, message, envelope.sig_helper):
        raise ReportRejected(Reason.TASK_SIGNATURE, "the Helper's signature", "another")
    return task


def _check_bounds(task: Task, bounds: Bounds, catalogue: Catalogue | None) -> None:
    for name in ("epsilon_millionths", "delta_1e12"):
        if getattr(task, name) != getattr(bounds, name):
            expected = f"{name} {getattr(bounds, name)}"
            raise ReportRejected(Reason.BUDGET, expected, getattr(task, name))
    if catalogue is not None:
        try:
            match_task(catalogue, task)
        except CatalogueError as error:
            raise ReportRejected(Reason.CATALOGUE, "the catalogue's sections", error) from error
    if task.d > bounds.d_at_most:
        raise ReportRejected(Reason.DIMENSION, f"d up to {bounds.d_at_most}", task.d)
    for section in task.sections:
        if section.bound_steps > bounds.bound_steps_at_most:
            raise ReportRejected(
                Reason.COORDINATE_BOUND,
                f"at most {bounds.bound_steps_at_most} steps in {section.name}",
                section.bound_steps,
            )


def _check_cohort(task: Task, bounds: Bounds) -> int:
    """Give h, the hosts whose noise counts."""
    if task.n_max > bounds.n_max_at_most:
        expected = f"n_max up to {bounds.n_max_at_most}"
        raise ReportRejected(Reason.N_MIN_BOUND, expected, task.n_max)
    if task.n_min < bounds.n_min_at_least:
        expected = f"n_min of {bounds.n_min_at_least} or more"
        raise ReportRejected(Reason.N_MIN_BOUND, expected, task.n_min)
    if task.scheme is Scheme.LOCAL:
        return 1
    if task.domain == FLEET_DOMAIN and task.min_operators < MIN_OPERATORS:
        expected = f"{MIN_OPERATORS} operators or more in a fleet task"
        raise ReportRejected(Reason.OPERATORS, expected, task.min_operators)
    with _refusing(Reason.CORRUPTED_BOUND):
        return calibrate.honest_hosts(task.n_max, task.n_min, task.t)


def section_noises(task: Task) -> list[SectionNoise]:
    return [_check_section(task, section, task.h) for section in task.sections]


def _check_section(task: Task, section: SectionSpec, h: int) -> SectionNoise:
    with _refusing(Reason.COORDINATE_BOUND):
        delta_sq = calibrate.sensitivity_sq_steps(
            section.coordinate_cap, section.l1_bound, section.q
        )
    windows = calibrate.windows_touched(task.window_s, task.windows)
    mu_1e9 = calibrate.gdp_mu_1e9(task.epsilon_millionths, task.delta_1e12)
    with _refusing(Reason.MODULUS):
        needed = calibrate.sigma_local_1024(delta_sq, windows, section.weight_millionths, mu_1e9, h)
        calibrate.check_sigma_range(section.sigma_1024)
    needed = max(needed, calibrate.MIN_SIGMA_1024)
    if section.sigma_1024 < needed:
        expected = f"sigma of {needed}/1024 steps or more in {section.name}"
        raise ReportRejected(Reason.SIGMA_LOW, expected, f"{section.sigma_1024}/1024")
    if task.scheme is Scheme.MASKED:
        with _refusing(Reason.MODULUS):
            calibrate.check_modulus(task.n_max, section.cap_steps, section.sigma_1024)
    return SectionNoise(delta_sq, section.sigma_1024, windows, section.length, h)


@contextmanager
def _refusing(reason: Reason) -> Iterator[None]:
    """Turn a broken bound into the typed refusal."""
    try:
        yield
    except ParameterError as error:
        raise ReportRejected(reason, f"{error.bound}: {error.expected}", error.got) from error


@dataclass(frozen=True, slots=True)
class ParticipantRules:
    """What this process trusts and serves.

    domain     "demo" of a demo or a trial, and seeded noise is refused without it; any other
               process serves "fleet" and, from this host's own operator, "operator"
    gate       the PLD check at acceptance, None where the plan's builder has run it
    catalogue  what the sections of a task must be as in, None where nothing is measured by it
    """

    pins: Pins
    bounds: Bounds = field(default_factory=Bounds)
    domain: str = "live"
    gate: Gate | None = None
    catalogue: Catalogue | None = None

    @property
    def demo(self) -> bool:
        """Say whether this is the demo, whose rosters and tasks live for minutes."""
        return self.domain == DEMO_DOMAIN

    def serves(self, domain: str) -> bool:
        """Say whether tasks of a domain are taken: a demo takes demo tasks alone."""
        if self.demo:
            return domain == DEMO_DOMAIN
        return domain in {FLEET_DOMAIN, OPERATOR_DOMAIN}


IDLE_S: Final = 20.0
"""The child waits this long for the next task: those of one plan come together."""
_ANSWER_S: Final = 45.0
"""Twice, it is less than the time after which systemd takes the agent for stuck."""
_MOST_ANSWER: Final = 4096
_WHAT: Final = "epsilon of a week"
_CODE: Final = (
    "from transport.process.unforeseen import told\n"
    "with told(): from edge_agent.protocol.task_check import serve; serve()"
)


def choose_gate() -> Gate:
    """Choose a child's check, or this process's own where a child could not load the code."""
    return GateProcess() if interpreter().whole else gate


class GateProcess:
    """The gate, asked in a child that is begun when it is needed."""

    def __init__(self) -> None:
        self._child: subprocess.Popen[str] | None = None

    def __call__(
        self, sections: Sequence[SectionNoise], epsilon_millionths: int, delta_1e12: int
    ) -> float:
        """See `privacy.accountant.gate`; a child that gives no answer is a refusal."""
        question = json.dumps([[asdict(s) for s in sections], epsilon_millionths, delta_1e12])
        # The first child may have ended for lack of questions.
        answer = self._ask(question) or self._ask(question)
        if answer is None:
            raise ParameterError(_WHAT, "an answer of the accountant", "none")
        return _epsilon(answer, epsilon_millionths / 1e6 + GATE_MARGIN)

    def close(self) -> None:
        """End the child; the next question begins another."""
        if self._child is not None:
            self._child.kill()
            self._child.wait()
        self._child = None

    def _ask(self, question: str) -> str | None:
        child = self._child
        if child is None or child.poll() is not None:
            child = self._child = _begin()
        if child.stdin is None or child.stdout is None:
            return None
        # Late at any point, in the middle of a line too, it is ended, and its pipes with it.
        late = Timer(_ANSWER_S, child.kill)
        late.start()
        try:
            child.stdin.write(question + "\n")
            child.stdin.flush()
            line = child.stdout.readline(_MOST_ANSWER)
        except (OSError, ValueError):
            line = ""
        finally:
            late.cancel()
        if not line.endswith("\n"):
            child.kill()
            return None
        return line


def _epsilon(answer: str, most: float) -> float:
    """Read an answer: an epsilon within the bound, or the refusal it stands for."""
    try:
        said = json.loads(answer)
    except (ValueError, RecursionError):
        said = None
    match said:
        case ["epsilon", float(value)] if 0.0 <= value <= most:
            return value
        case ["refused", str(bound), str(expected), str(got)]:
            raise ParameterError(bound, expected, got)
        case _:
            raise ParameterError(_WHAT, f"an epsilon of at most {most:g}", "another answer")


def _begin() -> subprocess.Popen[str]:
    python = interpreter()
    child = subprocess.Popen(
        [python.program, "-P", "-S", "-c", _CODE], cwd="/", env=os.environ | python.environment,
        pass_fds=python.descriptors, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        process_group=0,  # a terminal's Ctrl-C is for the agent; this ends with its questions
    )  # fmt: skip
    # Collects the child when it ends by itself.
    Thread(target=child.wait, daemon=True).start()
    return child


def serve() -> None:
    """Answer questions, one a line, until there are none."""
    # What libraries print is no answer: it goes where their warnings go.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    while select.select([sys.stdin], [], [], IDLE_S)[0]:
        line = sys.stdin.readline()
        if not line:
            return
        sections, epsilon_millionths, delta_1e12 = json.loads(line)
        noises = [SectionNoise(**section) for section in sections]
        try:
            answer = ["epsilon", gate(noises, epsilon_millionths, delta_1e12)]
        except ParameterError as error:
            answer = ["refused", error.bound, error.expected, str(error.got)]
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
