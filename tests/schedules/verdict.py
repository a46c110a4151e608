"""The oracle's last word, once a simulation has settled."""

from __future__ import annotations

from aggregator.transcripts.transcript import read_transcript
from aggregator.transcripts.transcript_check import checked_windows, verify_transcripts
from edge_agent.ledger.left_reports import Fate
from tests.schedules.leaders import key_of
from tests.schedules.signed_world import HOSTS, LAST_WINDOW, LIAR, N_MIN, parties
from tests.schedules.simulated_log import unread
from tests.schedules.simulation import Simulation


def judge(sim: Simulation) -> None:
    oracle = sim.oracle
    oracle.check_releases(sim.leaders, helper_copied=sim.helper_copied)
    oracle.check_ledgers(sim.agents, sim.leaders)
    oracle.check_reports(sim.leaders, _sent(sim))
    _check_peace(sim)
    _check_store(sim)
    if not sim.parted:
        _check_transcripts(sim)
    elif not sim.helper_parted:
        _check_chain(sim)


def _sent(sim: Simulation) -> dict[bytes, bool]:
    """Of each report that a ledger tells of, whether it says that the log has it."""
    found: dict[bytes, bool] = {}
    for agent in sim.agents:
        if agent.ledger is None:
            sim.oracle.say(f"{agent.name} does not run")
            continue
        rows = agent.ledger._db.execute("SELECT report_id, fate FROM left_reports")
        for report_id, fate in rows:
            if report_id not in sim.oracle.sealed:
                sim.oracle.say("a ledger tells of a report that nobody sealed")
                continue
            found[report_id] = fate == Fate.SENT
            if fate == Fate.WAITS:
                sim.oracle.say(f"{agent.name}: a report still waits, and nothing holds it up")
    return found


def _check_peace(sim: Simulation) -> None:
    """Once faults ended, windows are released, with every host that reported."""
    leader = sim.leader
    if leader.state is None or leader.leader is None:
        sim.oracle.say("the Leader does not run")
        return
    if sim.helpers[0].runner is None:
        sim.oracle.say("the Helper does not run")
    hosts = sum(
        sealed.window == LAST_WINDOW and report_id in sim.oracle.on_log
        for report_id, sealed in sim.oracle.sealed.items()
    )
    # A ledger recovered by a clock ahead spends nothing before that clock's time: fail closed.
    silent = sum(len(agent.hosts) for agent in sim.agents if agent.recovered_s >= LAST_WINDOW)
    expected = (LIAR if sim.schedule.liar else HOSTS) - silent
    if hosts < expected:
        sim.oracle.say(f"in peace {hosts} of {expected} hosts report")
    n = [r.n for r in leader.store.written if r.window_start_s == LAST_WINDOW]
    # An operator who put a Helper right after the window had closed gave up its answer.
    closed = any(
        key.window == LAST_WINDOW and how == "closed_before_restore" for key, how in leader.settled
    )
    given_up = sim.helper_parted and not n and closed
    if len(n) != 1 and hosts >= N_MIN and not given_up:
        sim.oracle.say(f"in peace a window of {hosts} hosts is released with {n}")
    if not sim.is_settled():
        left = dict(unread(sim.log, leader.group))
        sim.oracle.say(f"in peace windows do not end; uncommitted: {left}")


def _check_store(sim: Simulation) -> None:
    leader = sim.leader
    stored = {key_of(release) for release in leader.store.written}
    for release in () if leader.state is None else leader.state.releases():
        if release.key not in stored:
            sim.oracle.say(f"window {release.key.window}: settled, and the store lacks it")


def _check_chain(sim: Simulation) -> None:
    """The Helper's chain is one, whatever copies of the Leader asked for."""
    links = read_transcript(sim.helpers[0].files[0]).links
    for window in checked_windows((), links, parties()):
        for problem in window.problems:
            if "(helper)" in problem:
                sim.oracle.say(f"transcripts: {window.where}{problem}")


def _check_transcripts(sim: Simulation) -> None:
    ours, theirs = (read_transcript(path) for path in (sim.leader.path, sim.helpers[0].files[0]))
    verdict = verify_transcripts(ours, theirs, parties())
    for problem in verdict.problems:
        sim.oracle.say(f"transcripts: {problem}")
    if verdict.unsigned:
        sim.oracle.say(f"transcripts: {verdict.unsigned} releases wait for the Helper's signature")
