"""A new key for a host: its ledger goes on, whatever is cut off; what a retired host keeps."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from edge_agent import membership as rekey_module
from edge_agent.config import AgentConfig
from edge_agent.ledger.ledger import Ledger
from edge_agent.ledger.ledger_records import (
    HostEntry,
    KnownSeries,
    LedgerBusy,
    LedgerCloned,
    LedgerMissing,
    LedgerOfOthers,
    LedgerRefused,
    LedgerRolledBack,
    SealedRecord,
    WindowSpent,
)
from edge_agent.membership import end_of_earlier, rekey, retire
from edge_agent.open_agent import open_ledger
from privacy.budget import Entry
from privacy.signing import SigningKey
from tests.agent_live import surroundings
from transport.files.keyfiles import (
    HostKey,
    KeyFileRefused,
    host_binding,
    load_host_key,
    mark_ledger,
    read_host_key,
    write_host_key,
)
from wire.fields import host_id

NOW = 1_800_000_000
OLD = host_binding("machine", ["GPU-a", "GPU-b"])
NEW = host_binding("machine", ["GPU-a", "GPU-c"])
"""One of its GPUs was replaced."""


def entry(start: int) -> Entry:
    return Entry("minute", start, start + 60, 600_000, 10_081)


class Machine:
    """A host whose agent ran and spent windows, and the key that is to come."""

    def __init__(self, folder: Path) -> None:
        self.config: AgentConfig = surroundings(folder).config
        self.key_file = self.config.host.key_file
        self.key_file.unlink()
        write_host_key(self.key_file, HostKey(SigningKey.generate(), OLD))
        self.next_file = folder / "next.key"
        write_host_key(self.next_file, HostKey(SigningKey.generate(), NEW))
        self.old = _id(read_host_key(self.key_file))
        self.new = _id(read_host_key(self.next_file))

    def spend(self, *starts: int) -> None:
        ledger = open_ledger(self.config, OLD, NOW)
        record = SealedRecord("plst1.reports", b"k", b"sealed", 0, NOW + 86_400)
        for start in starts:
            ledger.commit_sealed([HostEntry(self.old, entry(start))], [record], start + 60)
        ledger.remember_series([KnownSeries("minute", 3, 600_000, 60)])
        ledger.close()

    def rekey(self, now_s: int = NOW + 3600) -> rekey_module.Rekeyed:
        return rekey(self.config, self.next_file, NEW, now_s)

    def opened(self, now_s: int = NOW + 3600) -> Ledger:
        return open_ledger(self.config, NEW, now_s)


def _id(key: HostKey) -> bytes:
    return bytes(host_id(key.signing.public_bytes))


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_what_was_spent_under_the_old_key_stays_spent_under_the_new(machine: Machine) -> None:
    machine.spend(NOW, NOW + 60)
    assert machine.rekey().carried
    assert not machine.next_file.exists()
    ledger = machine.opened()
    view = ledger.view([machine.new])
    assert view.hosts[0].entries == (entry(NOW), entry(NOW + 60))
    assert view.series["minute"].version == 3
    assert (view.resume_after_s, view.freeze_until_s) == (0, 0), "nothing was lost"
    assert ledger.spool_records == 2, "what was sealed is still sent"
    with pytest.raises(WindowSpent):
        ledger.commit_sealed([HostEntry(machine.new, entry(NOW + 60))], [], NOW + 3600)
    with pytest.raises(LedgerMissing):
        ledger.view([machine.old])
    ledger.close()


@pytest.mark.parametrize("cut", ["carry_over", "supersede_host_key"])
def test_call_that_is_cut_off_publishes_nothing_and_is_ended_by_the_same_call(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, cut: str
) -> None:
    machine.spend(NOW)
    done = getattr(rekey_module, cut)

    def killed(*arguments: object, **named: object) -> None:
        done(*arguments, **named)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(rekey_module, cut, killed)
        with pytest.raises(KeyboardInterrupt):
            machine.rekey()
    if cut == "carry_over":  # after the other all but the second copy of the key is done
        with pytest.raises((KeyFileRefused, LedgerRefused)):
            machine.opened().view([machine.new])
    machine.rekey()
    ledger = machine.opened()
    assert ledger.view([machine.new]).hosts[0].entries == (entry(NOW),)
    assert load_host_key(machine.key_file, NEW).ledger_exists
    assert not machine.next_file.exists()
    ledger.close()


def killed(work: Callable[[], object], at: int) -> bool:
    """Do it in a child that is killed before it changes its `at`-th name; False: it has fewer."""
    changes = {"os.link", "os.remove", "os.rename"}
    child = os.fork()
    if child == 0:
        left = [at]

        def count(event: str, _arguments: object) -> None:
            if event in changes:
                left[0] -= 1
                if left[0] == 0:
                    os._exit(1)

        sys.addaudithook(count)
        work()
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1


@pytest.mark.parametrize("ran", [True, False], ids=["ran", "never ran"])
def test_call_that_is_killed_anywhere_is_ended_by_the_same_call(tmp_path: Path, ran: bool) -> None:
    for at in itertools.count(1):
        folder = tmp_path / str(at)
        folder.mkdir()
        machine = Machine(folder)
        if ran:
            machine.spend(NOW)
        if not killed(machine.rekey, at):
            break
        if end_of_earlier(machine.config, machine.next_file, NEW) is None:
            machine.rekey()
        key = read_host_key(machine.key_file)
        assert (_id(key), key.ledger_exists) == (machine.new, ran)
        assert not machine.next_file.exists()
        seeds = [path for path in machine.key_file.parent.iterdir() if path.name.startswith(".")]
        assert seeds == []
        if ran:
            ledger = machine.opened()
            assert ledger.view([machine.new]).hosts[0].entries == (entry(NOW),)
            ledger.close()
    assert at > 5


def test_running_agent_is_not_rekeyed(machine: Machine) -> None:
    machine.spend(NOW)
    ledger = open_ledger(machine.config, OLD, NOW + 60)
    with pytest.raises(LedgerBusy):
        machine.rekey()
    with pytest.raises(LedgerBusy):
        retire(machine.config)
    ledger.close()
    assert _id(read_host_key(machine.key_file)) == machine.old


def test_lost_ledger_is_not_made_good_by_a_new_key(machine: Machine) -> None:
    machine.spend(NOW)
    machine.config.ledger_file.unlink()
    with pytest.raises(LedgerMissing, match="recover"):
        machine.rekey()
    assert machine.next_file.exists()


def test_ledger_that_was_put_back_is_refused(machine: Machine) -> None:
    machine.spend(NOW)
    earlier = machine.config.ledger_file.read_bytes()
    machine.spend(NOW + 60)
    machine.config.ledger_file.write_bytes(earlier)
    with pytest.raises(LedgerRolledBack):
        machine.rekey()


def test_ledger_of_another_key_is_refused(machine: Machine) -> None:
    machine.spend(NOW)
    machine.key_file.unlink()
    write_host_key(machine.key_file, HostKey(SigningKey.generate(), OLD))
    with pytest.raises(LedgerOfOthers):
        machine.rekey()


def test_key_of_another_machine_or_the_one_in_use_is_refused(machine: Machine) -> None:
    machine.spend(NOW)
    with pytest.raises(KeyFileRefused, match="GPU"):
        rekey(machine.config, machine.next_file, OLD, NOW + 3600)
    with pytest.raises(KeyFileRefused, match="in use"):
        rekey(machine.config, machine.key_file, OLD, NOW + 3600)
    assert machine.key_file.exists()


def test_host_that_never_ran_gets_its_key_alone(machine: Machine) -> None:
    assert not machine.rekey().carried
    assert _id(read_host_key(machine.key_file)) == machine.new
    assert not read_host_key(machine.key_file).ledger_exists


def test_new_key_beside_an_old_ledger_publishes_nothing(machine: Machine) -> None:
    """Whoever moves the keys by hand: the ledger is of another binding, or another host."""
    machine.spend(NOW)
    machine.key_file.unlink()
    machine.next_file.rename(machine.key_file)
    with pytest.raises(LedgerCloned):
        machine.opened()
    machine.key_file.unlink()
    write_host_key(machine.key_file, HostKey(SigningKey.generate(), OLD))
    mark_ledger(machine.key_file, OLD)
    ledger = open_ledger(machine.config, OLD, NOW + 60)
    with pytest.raises(LedgerMissing):
        ledger.view([_id(read_host_key(machine.key_file))])
    ledger.close()


def test_ledger_whose_key_is_lost_is_recovered_for_the_machine(machine: Machine) -> None:
    """The state's disk was kept over a reinstallation, key and fence were not."""
    machine.spend(NOW, NOW + 60)
    machine.key_file.unlink()
    machine.config.fence_file.unlink()
    machine.next_file.rename(machine.key_file)
    with pytest.raises(LedgerMissing):
        machine.opened()
    recovered = Ledger.recover(
        machine.config.ledger_file, machine.config.fence_file, hosts=[machine.new], binding=NEW,
        now_s=NOW + 3600, signed_time_s=0, known=[KnownSeries("minute", 3, 600_000, 60)],
    )  # fmt: skip
    view = recovered.view([machine.new])
    assert view.hosts[0].entries == (entry(NOW), entry(NOW + 60))
    assert view.resume_after_s == NOW + 3600
    recovered.close()


def test_retired_host_keeps_its_ledger_and_nothing_raw(machine: Machine) -> None:
    machine.spend(NOW)
    raw = [machine.config.windows_file, machine.config.history_file, machine.config.journal_file]
    raw += [machine.config.journal_file.with_name("diagnoses.jsonl.1")]
    raw.append(Path(f"{machine.config.windows_file}-journal"))
    for path in raw:
        path.write_bytes(b"raw")
    ended = retire(machine.config)
    assert ended.host == machine.old
    assert not any(path.exists() for path in (*raw, machine.key_file))
    assert set(ended.kept) == {machine.config.ledger_file, machine.config.fence_file}
    write_host_key(machine.key_file, HostKey(SigningKey.generate(), OLD))
    ledger = open_ledger(machine.config, OLD, NOW + 60)
    assert ledger.spool_records == 0, "what waited is not sent later"
    with pytest.raises(LedgerMissing, match="recover"):
        ledger.view([_id(read_host_key(machine.key_file))])
    ledger.close()
    assert retire(machine.config).host is not None
    assert retire(machine.config).host is None
