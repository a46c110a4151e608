"""A copied machine: an identity of its own, no budget that begins anew, no word of the other."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from edge_agent import membership
from edge_agent.bound_gpus import ListedGpu, with_bound_gpus, write_record
from edge_agent.config import AUTO, AgentConfig
from edge_agent.ledger.ledger import Ledger
from edge_agent.ledger.ledger_records import HostEntry, KnownSeries, SealedRecord, WindowSpent
from edge_agent.membership import Disowned, disown, rekey
from edge_agent.open_agent import open_ledger
from edge_agent.protocol.eligibility import Recovering, TaskBook
from edge_agent.protocol.task_check import Bounds, ParticipantRules
from edge_agent.service.doctor import AgentState
from privacy.budget import Entry
from privacy.signing import SigningKey
from tests.agent_live import surroundings
from tests.agent_world import T0, World
from transport.files.keyfiles import (
    HostKey,
    KeyFileRefused,
    host_binding,
    load_host_key,
    machine_id,
    read_host_key,
    write_host_key,
)
from transport.process.doctor_checks import CheckVerdict, examine
from wire.fields import host_id

NOW = T0 + 3600
THEIRS, OURS = "7be1c0d2a4f94e3f8d6a5b9c01e2f347", "2f6b8c1de0a94753b1c2d3e4f5a69788"
_GPUS = (ListedGpu("h100", "GPU-aa"), ListedGpu("h100", "GPU-bb"))
_OTHER_GPUS = (ListedGpu("h100", "GPU-cc"), ListedGpu("h100", "GPU-dd"))
WORLD = World(1)
SERIES = WORLD.task().series_key


class Copy:
    """A disk with the key, ledger and raw data of a host that ran elsewhere."""

    def __init__(self, folder: Path, gpus: tuple[ListedGpu, ...] = ()) -> None:
        config = surroundings(folder).config
        self.config: AgentConfig = replace(config, host=replace(config.host, gpus=AUTO))
        self.key_file = self.config.host.key_file
        self.key_file.unlink()
        binding = host_binding(THEIRS, [gpu.uuid for gpu in gpus])
        write_host_key(self.key_file, HostKey(SigningKey.generate(), binding))
        write_record(self.config.gpus_file, gpus)
        self.theirs = bytes(host_id(read_host_key(self.key_file).signing.public_bytes))
        ledger = open_ledger(self.config, binding, T0)
        record = SealedRecord("plst1.reports", b"k", b"sealed", 0, NOW + 86_400)
        ledger.commit_sealed([HostEntry(self.theirs, entry(T0))], [record], T0 + 60)
        ledger.remember_series([KnownSeries(SERIES, 1, 600_000, 60)])
        ledger.close()
        self.config.windows_file.write_bytes(b"what the other machine measured")
        self.config = with_bound_gpus(self.config)

    def disown(
        self, machine: str = OURS, here: tuple[ListedGpu, ...] = (), *, auto: bool = True
    ) -> Disowned:
        return disown(self.config, machine, here, auto=auto, now_s=NOW)

    def opened(self, machine: str = OURS, here: tuple[ListedGpu, ...] = ()) -> Ledger:
        return open_ledger(self.config, host_binding(machine, [g.uuid for g in here]), NOW)


def entry(start: int) -> Entry:
    return Entry(SERIES, start, start + 60, 600_000, 10_081)


def test_copy_gets_a_key_of_its_own_and_keeps_nothing_that_the_other_measured(
    tmp_path: Path,
) -> None:
    copy = Copy(tmp_path, _GPUS)
    done = copy.disown(here=_OTHER_GPUS)
    key = load_host_key(copy.key_file, host_binding(OURS, ["GPU-cc", "GPU-dd"]))
    assert host_id(key.signing.public_bytes) == done.new
    assert (done.copied, key.ledger_exists) == (copy.theirs, True)
    assert copy.config.windows_file in done.destroyed
    assert not copy.config.windows_file.exists()
    raw = replace(copy.config, host=replace(copy.config.host, gpus=AUTO, gpu_uuids=()))
    assert with_bound_gpus(raw).host.gpu_uuids == ("GPU-cc", "GPU-dd")
    with closing(copy.opened(here=_OTHER_GPUS)) as ledger:
        assert ledger.spool_records == 0, "the other machine sends its own"
        assert ledger.view([done.new]).hosts[0].epoch_ctr >= NOW


def test_machine_that_calls_itself_a_copy_has_no_budget_anew(tmp_path: Path) -> None:
    """A new machine id and a new key: what it spent is spent, and nothing heavier is taken."""
    copy = Copy(tmp_path)
    done = copy.disown()
    ledger = copy.opened()
    view = ledger.view([done.new])
    assert view.hosts[0].entries == (entry(T0),)
    assert view.resume_after_s >= NOW
    with pytest.raises(WindowSpent):
        ledger.commit_sealed([HostEntry(done.new, entry(T0))], [], NOW)
    ledger.close()
    book = TaskBook(ParticipantRules(WORLD.pins, Bounds(n_min_at_least=1), "demo"), view)
    for task in (WORLD.task(weight=700_000), WORLD.task(version=2), WORLD.task("day", weight=9)):
        with pytest.raises(Recovering):
            book.take(WORLD.sign_task(task), NOW)
    assert book.take(WORLD.sign_task(WORLD.task()), NOW), "what it had goes on"


@pytest.mark.parametrize(
    ("machine", "here", "words"),
    [
        (THEIRS, _OTHER_GPUS, "under this machine's id; .*systemd-machine-id-setup"),
        (OURS, _GPUS[1:], "with 1 of this machine's GPUs; .*agent rekey"),
        (OURS, (ListedGpu("h100", "GPU-AA"),), "with 1 of this machine's GPUs"),
    ],
    ids=["one id baked into an image", "a GPU of it is here", "however it is typed"],
)
def test_machine_of_the_key_is_no_copy(
    tmp_path: Path, machine: str, here: tuple[ListedGpu, ...], words: str
) -> None:
    copy = Copy(tmp_path, _GPUS)
    before = copy.key_file.read_bytes()
    with pytest.raises(KeyFileRefused, match=words):
        copy.disown(machine, here)
    assert copy.key_file.read_bytes() == before
    assert copy.config.windows_file.exists()


def test_copied_configuration_that_names_the_others_gpus_is_refused_first(tmp_path: Path) -> None:
    copy = Copy(tmp_path, _GPUS)
    with pytest.raises(KeyFileRefused, match=r"not this machine's \(GPU-cc, GPU-dd\)"):
        copy.disown(here=_OTHER_GPUS, auto=False)
    assert copy.config.windows_file.exists()


def test_copy_whose_ledger_is_gone_or_damaged_still_spends_nothing_of_the_past(
    tmp_path: Path,
) -> None:
    copy = Copy(tmp_path)
    copy.config.ledger_file.write_bytes(b"\0" * 8192)
    done = copy.disown()
    with closing(copy.opened()) as ledger:
        view = ledger.view([done.new])
    assert (view.resume_after_s >= NOW, view.freeze_until_s > NOW) == (True, True)


def test_image_with_a_key_that_never_ran_gives_each_machine_a_key_alone(tmp_path: Path) -> None:
    copy = Copy(tmp_path)
    for file in (copy.config.ledger_file, copy.config.fence_file):
        file.unlink()
    key = HostKey(SigningKey.generate(), host_binding(THEIRS, []))
    write_host_key(copy.key_file, key, replace_file=True)
    assert not copy.disown().ledger
    assert not load_host_key(copy.key_file, host_binding(OURS, [])).ledger_exists


@pytest.mark.release
@pytest.mark.parametrize("cut", ["_drop_measured", "write_record", "supersede_host_key"])
def test_call_that_is_cut_off_is_ended_by_the_same_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cut: str
) -> None:
    copy = Copy(tmp_path, _GPUS)

    def killed(*_arguments: object, **_named: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(membership, cut, killed)
        with pytest.raises(KeyboardInterrupt):
            copy.disown(here=_OTHER_GPUS)
    done = copy.disown(here=_OTHER_GPUS)
    with closing(copy.opened(here=_OTHER_GPUS)) as ledger:
        assert ledger.view([done.new]).hosts[0].entries == (entry(T0),)


def test_new_key_under_another_machine_id_takes_over_no_raw_data(tmp_path: Path) -> None:
    """By `rekey` too: what was measured may be reported by the machine that it was copied from."""
    copy = Copy(tmp_path)
    following = tmp_path / "next.key"
    binding = host_binding(OURS, [])
    write_host_key(following, HostKey(SigningKey.generate(), binding))
    assert rekey(copy.config, following, binding, NOW).carried
    assert not copy.config.windows_file.exists()
    with closing(copy.opened()) as ledger:
        assert ledger.spool_records == 0


@pytest.mark.parametrize(
    ("file", "name", "found", "do"),
    [
        (OURS, "key", "another machine id", "agent disown"),
        ("uninitialized", "machine id", "got 'uninitialized'", "systemd-machine-id-setup"),
    ],
)
def test_doctor_says_what_a_copied_or_unfinished_machine_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, name: str, found: str, do: str
) -> None:
    copy = Copy(tmp_path)
    (tmp_path / "machine-id").write_text(f"{file}\n")
    monkeypatch.setattr(machine_id, "__defaults__", (tmp_path / "machine-id",))
    said = next(one for one in examine(AgentState(copy.config)) if one.name == name)
    assert said.verdict is CheckVerdict.BROKEN
    assert found in said.found
    assert do in (said.do or "")
    assert copy.theirs.hex() not in said.found, "nobody is told to remove the other"
