"""How each kind of fault strikes."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from typing import Final

from aggregator.state.state_file import StateUnusable
from tests.schedules.adversary import forge
from tests.schedules.agents import Agent
from tests.schedules.helpers import HelperProcess
from tests.schedules.machine import Process, copy_database
from tests.schedules.schedule import SLOT_S, Fault
from tests.schedules.simulated_log import PARTITIONS, SimulatedLog
from tests.schedules.simulation import Simulation
from wire.topics import REPORTS

Strike = Callable[[Simulation, Fault], None]
Choose = Callable[[Simulation, Fault], Process]


def _agent(sim: Simulation, fault: Fault) -> Agent:
    return sim.agents[fault.who % len(sim.agents)]


def _leader(sim: Simulation, fault: Fault) -> Process:
    return sim.leader


def _helper(sim: Simulation, fault: Fault) -> HelperProcess:
    return sim.helpers[0]


def _log(sim: Simulation, fault: Fault) -> SimulatedLog:
    return sim.log


# Any process


def _killed(choose: Choose) -> Strike:
    return lambda sim, fault: choose(sim, fault).kill(fault.value * SLOT_S)


def _set(choose: Callable[[Simulation, Fault], object], name: str, kind: type = int) -> Strike:
    return lambda sim, fault: setattr(choose(sim, fault), name, kind(fault.value))


def _lasting(choose: Callable[[Simulation, Fault], object], name: str) -> Strike:
    def strike(sim: Simulation, fault: Fault) -> None:
        flagged = choose(sim, fault)
        setattr(flagged, name, True)
        sim.until(fault.value, fault.slot, lambda: setattr(flagged, name, False))

    return strike


# Agents


def _flush_lost(sim: Simulation, fault: Fault) -> None:
    _agent(sim, fault).client.lose_flush += fault.value


# The log


def _log_holds(sim: Simulation, fault: Fault) -> None:
    part = fault.who % PARTITIONS[REPORTS]
    sim.log.held.add(part)
    sim.until(fault.value, fault.slot, lambda: sim.log.held.discard(part))


def _commits_lost(sim: Simulation, fault: Fault) -> None:
    sim.log.set_back(sim.leader.group)
    sim.commits_lost = True


def _append_again(sim: Simulation, fault: Fault, *, elsewhere: bool, forged: bool = False) -> None:
    records = sim.log.reports()
    if not records:
        return
    record = records[fault.who * 37 % len(records)]
    value = forge(record.value, fault.value) if forged else record.value
    part = (record.partition + elsewhere) % PARTITIONS[REPORTS]
    sim.log.append(REPORTS, record.key, value, partition=part)


# The Leader


def _leader_twice(sim: Simulation, fault: Fault) -> None:
    if not sim.leader.alive:
        return
    second = sim.new_leader(f"leader-{len(sim.leaders)}")
    second.folder = sim.leader.folder
    try:
        with sim.machine.running(second):
            second._start()
    except StateUnusable:
        return
    finally:
        second.kill()
    sim.oracle.say("two Leaders work on one state")


def _leader_cloned(sim: Simulation, fault: Fault) -> None:
    """A copy of its machine goes on beside it for some slots."""
    if not sim.leader.path.exists():
        return
    sim.parted = True
    clone = sim.new_leader(f"leader-{len(sim.leaders)}")
    copy_database(sim.leader.path, clone.path)
    sim.log.committed[clone.group] = dict(sim.log.offsets(sim.leader.group))
    clone.tasks = list(sim.leader.tasks)
    sim.leaders.append(clone)

    def end() -> None:
        clone.kill()
        clone.stopped = True

    sim.until(fault.value, fault.slot, end)


def _leader_restored(sim: Simulation, fault: Fault) -> None:
    """Its operator has the group read again what the restored state may lack: epochs above all."""
    if sim.leader.restore():
        sim.parted = sim.leader.restored = True
        _commits_lost(sim, fault)


# The channel


def _channel_loses(sim: Simulation, fault: Fault) -> None:
    sim.channel.lose_replies += fault.value


def _channel_slow(sim: Simulation, fault: Fault) -> None:
    sim.leader.helper_delay_s = fault.value * SLOT_S / 2.0
    sim.until(6, fault.slot, lambda: setattr(sim.leader, "helper_delay_s", 0.0))


# The Helper


def _helper_twice(sim: Simulation, fault: Fault) -> None:
    """A second process takes over the state while the first still serves."""
    first = sim.helpers[0]
    if first.alive:
        second = sim.add_helper(f"helper-{len(sim.helpers)}", first.folder)
        second.tasks, second.rolled_back = list(first.tasks), first.rolled_back


def _helper_cloned(sim: Simulation, fault: Fault) -> None:
    """A copy of its machine, fence and all, answers beside it."""
    first = sim.helpers[0]
    if not first.alive:
        return
    clone = sim.add_helper(f"helper-{len(sim.helpers)}", sim.folder / f"clone-{len(sim.helpers)}")
    copy_database(first.files[0], clone.files[0])
    shutil.copy(first.files[1], clone.files[1])
    clone.tasks, clone.rolled_back = list(first.tasks), first.rolled_back
    sim.parted = sim.helper_parted = sim.helper_copied = True


def _helper_restored(sim: Simulation, fault: Fault, *, fence_too: bool) -> None:
    sim.helper_copied = True
    sim.helpers[0].restore(fence_too=fence_too)
    sim.helper_parted |= sim.helpers[0].rolled_back
    sim.parted |= sim.helper_parted


def _witness_away(sim: Simulation, fault: Fault) -> None:
    sim.witness.stop()
    sim.until(fault.value, fault.slot, sim.witness.start)


def _learns(which: str) -> Strike:
    def strike(sim: Simulation, fault: Fault) -> None:
        match which:
            case "agent":
                sim.announce(2)
            case "leader":
                sim.leader.learn(2)
            case _:
                for helper in sim.helpers:
                    helper.learn(2)

    return strike


STRIKES: Final[Mapping[str, Strike]] = {
    "agent killed": _killed(_agent),
    "agent falls at a step": _set(_agent, "fuse"),
    "agent disk full": _lasting(_agent, "disk_full"),
    "agent clock": _set(_agent, "skew_s", float),
    "agent cut off": _lasting(_agent, "cut_off"),
    "agent flush unacknowledged": _flush_lost,
    "agent ledger backed up": lambda sim, fault: _agent(sim, fault).back_up(),
    "agent ledger restored": lambda sim, fault: _agent(sim, fault).restore(),
    "log away": _lasting(_log, "away"),
    "log delivers again": lambda sim, fault: sim.leader.deliver_again(),
    "log commits lost": _commits_lost,
    "log doubles a record": lambda sim, fault: _append_again(sim, fault, elsewhere=False),
    "log moves a record": lambda sim, fault: _append_again(sim, fault, elsewhere=True),
    "log forges a record": lambda sim, fault: _append_again(
        sim, fault, elsewhere=fault.value % 5 == 0, forged=True
    ),
    "log holds a partition": _log_holds,
    "log backwards": _lasting(_log, "backwards"),
    "leader killed": _killed(_leader),
    "leader falls at a step": _set(_leader, "fuse"),
    "leader disk full": _lasting(_leader, "disk_full"),
    "leader clock": _set(_leader, "skew_s", float),
    "leader cut off": _lasting(_leader, "cut_off"),
    "leader twice": _leader_twice,
    "leader cloned": _leader_cloned,
    "leader backed up": lambda sim, fault: sim.leader.back_up(),
    "leader restored": _leader_restored,
    "channel cut": _lasting(lambda sim, fault: sim.channel, "cut"),
    "channel loses answers": _channel_loses,
    "channel slow": _channel_slow,
    "helper killed": _killed(_helper),
    "helper falls at a step": _set(_helper, "fuse"),
    "helper disk full": _lasting(_helper, "disk_full"),
    "helper clock": _set(_helper, "skew_s", float),
    "helper twice": _helper_twice,
    "helper cloned": _helper_cloned,
    "helper backed up": lambda sim, fault: sim.helpers[0].back_up(),
    "helper state restored": lambda sim, fault: _helper_restored(sim, fault, fence_too=False),
    "helper restored": lambda sim, fault: _helper_restored(sim, fault, fence_too=True),
    "witness away": _witness_away,
    "agent learns version 2": _learns("agent"),
    "leader learns version 2": _learns("leader"),
    "helper learns version 2": _learns("helper"),
}
"""Kind -> what it does."""
