"""The faults that tests put real parts through, in one table: name, role, fault, points reached.

`make test-all` runs every case. A case names points of the code, and a test of it that reaches none
of them fails. `python -m tests.fault_cases` writes the table of docs/faults.md.

A point is `module:Class.method`; with ` raises Error`, when that leaves it; with ` returns Value`,
when it gives that; with ` of word`, when it is called with that word; or `role@step`: where a
process was killed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final


@dataclass(frozen=True, slots=True)
class FaultCase:
    """One fault.

    role      whose part fails
    fault     what happens, in a few words
    points    where its tests reach the code; each is reached by at least one of them
    """

    name: str
    role: str
    fault: str
    points: tuple[str, ...]


AGENT_STEPS: Final = (
    "runtime:epoch-sealed",
    "runtime:window-closed",
    "runtime:report-sealed",
    "ledger:begin",
    "ledger:before-commit",
    "ledger:before-fence",
    "ledger:after-fence",
    "runtime:committed",
    "outbox:before-send",
    "outbox:before-flush",
    "outbox:after-flush",
    "runtime:before-forget",
    "runtime:forgotten",
)
LEADER_STEPS: Final = (
    "before KeepEpochs",
    "after KeepEpochs",
    "before StoreFrozen",
    "after StoreFrozen",
    "before CallHelper",
    "after CallHelper",
    "before StoreRelease",
    "between store and transcript",
    "after StoreRelease",
    "before CallCountersign",
    "after CallCountersign",
    "before StoreCountersigned",
    "after StoreCountersigned",
    "between log and published",
    "before CommitOffsets",
    "after CommitOffsets",
)
HELPER_STEPS: Final = (
    "before RememberEpochs",
    "after RememberEpochs",
    "before CommitAnswer",
    "between commit and sum",
    "before StoreReply",
    "after StoreReply",
    "between commit and witness",
    "after CommitAnswer",
    "before StoreChainEntry",
    "after StoreChainEntry",
)
DRIVER_STEPS: Final = ("before sink commit", "after sink commit")
STANDBY_STEPS: Final = (
    "after StoreFrozen",
    "between store and transcript",
    "before StoreCountersigned",
)
_REFUSED: Final = "aggregator.leader.intake:Intake._count of "
_REPLY: Final = "aggregator.protocol.interfaces:BatchReply.__init__ of "


def _killed(role: str, steps: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(f"{role}@{step}" for step in steps)


CASES: Final = (
    FaultCase("agent-killed", "agent", "kill -9 at each step", _killed("agent", AGENT_STEPS)),
    FaultCase("leader-killed", "Leader", "kill -9 at each step", _killed("leader", LEADER_STEPS)),
    FaultCase("helper-killed", "Helper", "kill -9 at each step", _killed("helper", HELPER_STEPS)),
    FaultCase(
        "driver-killed",
        "Spark's driver",
        "kill -9 at each step of a batch",
        _killed("driver", DRIVER_STEPS),
    ),
    FaultCase(
        "leading-machine-killed",
        "Leader on two machines",
        "kill -9 of the one that leads; the other goes on from the database",
        _killed("leader", STANDBY_STEPS),
    ),
    FaultCase(
        "broker-restarted",
        "broker",
        "killed and started again within a window",
        ("edge_agent.sending.outbox:Outbox.send_due raises TransportUnavailable",),
    ),
    FaultCase(
        "broker-disk-full",
        "broker",
        "ENOSPC under its data, which ends it",
        ("edge_agent.sending.outbox:Outbox.send_due raises TransportUnavailable",),
    ),
    FaultCase(
        "broker-of-three-killed",
        "broker",
        "the leader of a partition gone for good",
        ("pointillist.broker.local:LocalBroker.kill",),
    ),
    FaultCase(
        "agent-disk-full",
        "agent",
        "ENOSPC under its ledger",
        ("edge_agent.ledger.ledger:Ledger.commit_sealed raises LedgerFull",),
    ),
    FaultCase(
        "leader-disk-full",
        "Leader",
        "ENOSPC under its state",
        ("aggregator.leader.leader_runner:LeaderRunner.carry_out raises StorageUnavailable",),
    ),
    FaultCase(
        "helper-disk-full",
        "Helper",
        "ENOSPC under its state",
        ("aggregator.helper.helper_runtime:HelperRunner.submit_batch raises StorageUnavailable",),
    ),
    FaultCase(
        "store-disk-full",
        "Leader",
        "ENOSPC under its store",
        ("aggregator.releases.store:Store.write raises StorageUnavailable",),
    ),
    FaultCase(
        "log-disk-full",
        "log",
        "ENOSPC under the embedded log",
        ("transport.embedded.embedded:EmbeddedProducer.flush raises TransportUnavailable",),
    ),
    FaultCase(
        "consumer-slow",
        "Leader",
        "reads a record a turn, windows behind",
        ("aggregator.leader.schedule:LogWatch.came_late",),
    ),
    FaultCase(
        "reader-lingers",
        "log",
        "a dead reader of the Leader's group still holds partitions",
        ("aggregator.leader.schedule:LogWatch.unread raises TransportUnavailable",),
    ),
    FaultCase(
        "messages-duplicated",
        "log",
        "each record comes three times",
        (_REFUSED + "duplicate",),
    ),
    FaultCase(
        "messages-reordered",
        "log",
        "reports before their epochs, hosts and windows mixed",
        ("aggregator.leader.intake:Intake._park",),
    ),
    FaultCase(
        "messages-delayed",
        "log",
        "held back past the lateness",
        (_REFUSED + "window_late",),
    ),
    FaultCase(
        "messages-truncated",
        "log",
        "cut short at each length",
        (_REFUSED + "length", _REFUSED + "envelope"),
    ),
    FaultCase(
        "messages-forged",
        "log",
        "altered, of no host, of another window",
        (_REFUSED + "box", _REFUSED + "host_unknown", _REFUSED + "window_misaligned"),
    ),
    FaultCase(
        "agent-clock-stepped",
        "agent",
        "an hour ahead and back",
        ("edge_agent.agent_runtime:AgentRuntime._go_on_from",),
    ),
    FaultCase(
        "leader-clock-stepped",
        "Leader",
        "two minutes ahead and back",
        ("aggregator.leader.schedule:LogWatch.silent returns True",),
    ),
    FaultCase(
        "helper-clock-stepped",
        "Helper",
        "a quarter of an hour behind and back",
        (_REPLY + "window_open",),
    ),
    FaultCase(
        "clocks-skewed",
        "all",
        "each role seconds apart, both ways",
        ("aggregator.leader.admission:Admission.check_window",),
    ),
    FaultCase(
        "agent-cut-off",
        "network",
        "the link from agents and Leader to the broker down",
        ("edge_agent.sending.outbox:Outbox.send_due raises TransportUnavailable",),
    ),
    FaultCase(
        "parties-cut-off",
        "network",
        "the link between the parties down",
        ("aggregator.party.channel:ChannelHelper._call raises HelperUnavailable",),
    ),
    FaultCase(
        "reply-lost",
        "network",
        "the Helper's answers are lost on their way",
        ("aggregator.leader.leader_runner:_reply returns None",),
    ),
    FaultCase(
        "day-outage",
        "log",
        "away for a day of simulated time",
        ("edge_agent.ledger.left_reports:LeftReports.expire",),
    ),
    FaultCase(
        "upgrade-agents-first",
        "all",
        "agents of this version, parties of the first compatible one",
        ("upgrade@agents new, leader old, helper old",),
    ),
    FaultCase(
        "upgrade-parties-first",
        "all",
        "parties of this version, agents of the first compatible one",
        (
            "upgrade@agents old, leader new, helper old",
            "upgrade@agents old, leader old, helper new",
        ),
    ),
    FaultCase(
        "two-leaders",
        "Leader",
        "a second one by mistake, with a state of its own",
        (_REPLY + "answered_otherwise",),
    ),
    FaultCase(
        "two-helpers",
        "Helper",
        "a second one by mistake, on the same state",
        ("aggregator.helper.helper_runtime:HelperRunner.submit_batch raises FencedOut",),
    ),
    FaultCase(
        "helper-restored",
        "Helper",
        "put back from a backup of before its answer",
        (_REPLY + "closed_before_restore",),
    ),
)

_PAGE: Final = Path(__file__).resolve().parents[1] / "docs" / "faults.md"
_BEGIN: Final = "<!-- cases -->"
_END: Final = "<!-- /cases -->"


def case(name: str) -> FaultCase:
    """Find a case.

    Raises      KeyError
    """
    return {one.name: one for one in CASES}[name]


def table() -> Iterator[str]:
    yield "| case | role | what happens |"
    yield "|---|---|---|"
    for one in CASES:
        yield f"| `{one.name}` | {one.role} | {one.fault} |"


def written(page: str) -> str:
    """Give the page with the table as it is now."""
    before, rest = page.split(_BEGIN)
    after = rest.split(_END)[1]
    return f"{before}{_BEGIN}\n\n" + "\n".join(table()) + f"\n\n{_END}{after}"


if __name__ == "__main__":
    _PAGE.write_text(written(_PAGE.read_text(encoding="utf-8")), encoding="utf-8")
