"""A card is a stranger's bytes: what is no honest card is refused in words, and changes nothing."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from aggregator.enrolment.operators import OperatorKey
from aggregator.party.config import load_helper_config, load_leader_config
from edge_agent.config import load_config
from pointillist.cli import main
from pointillist.fleet import party_files, party_setup
from pointillist.fleet.party_card import CardRefused, FleetParty, PartyCard
from pointillist.fleet.party_config_text import quoted, shell_line
from pointillist.fleet.party_files import FolderUnusable, new_folder, replace_text, write_new
from pointillist.fleet.party_setup import PartyFolder, PartyWishes, begin_party, take_card
from pointillist.installation import public_fingerprint
from privacy.signing import SigningKey
from tests.fleet_kit import fleet_folder

LEADER, HELPER, OPERATOR = FleetParty
Three = tuple[PartyFolder, PartyFolder, PartyFolder]


@pytest.fixture(scope="module")
def met() -> Iterator[Three]:
    """Leader, Helper and operator that have not met; a test copies what it changes."""
    with fleet_folder() as base:
        leads = PartyWishes(
            LEADER, "vendor", "vendor.example.org", ("k.example.org:9093",), True, 40
        )
        yield (
            begin_party(base / "v", leads),
            begin_party(base / "n", PartyWishes(HELPER, "notary", "notary.example.org:7443")),
            begin_party(base / "a", PartyWishes(OPERATOR, "acme")),
        )


@pytest.fixture
def three(met: Three, tmp_path: Path) -> Three:
    copies = []
    for folder in met:
        copies.append(PartyFolder(tmp_path / folder.base.name))
        shutil.copytree(folder.base, copies[-1].base)
    return copies[0], copies[1], copies[2]


def meet(taker: PartyFolder, *others: PartyFolder) -> None:
    for other in others:
        take(taker, other.own_card.read_bytes(), other.base.parent / "posted.toml")


def take(taker: PartyFolder, content: bytes, path: Path) -> PartyCard:
    """Take in what somebody posted, and told the fingerprint of: it is theirs, and hostile."""
    path.write_bytes(content)
    return take_card(taker, path, public_fingerprint(content))


def everything(folder: PartyFolder) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.base.rglob("*") if path.is_file()}


_HELPERS: dict[str, tuple[Callable[[str], str], str]] = {
    "too long": (lambda t: t + "#" * 70_000, "at most 16,384 bytes"),
    "nested": (lambda t: t + "x = " + "[" * 9_000, "nested too deep"),
    "endless number": (lambda t: t.replace("n_min = 0", "n_min = 0x" + "f" * 9_000), "n_min"),
    "twice the same key": (lambda t: t + '\nname = "other"\n', "expected TOML"),
    "list for a name": (lambda t: t.replace('name = "notary"', 'name = ["notary"]'), "name"),
    "path for a name": (lambda t: t.replace('"notary"', '"../../../tmp/x"'), "name"),
    "end of line in a name": (lambda t: t.replace('"notary"', r'"notary\n"'), "name"),
    "key that forges a line": (lambda t: t + '"a\\nall is well" = 1\n', "unknown key"),
    "command for an address": (
        lambda t: t.replace("notary.example.org:7443", "$(touch x):7443"), "address"
    ),
    "line of TOML for an address": (
        lambda t: t.replace("notary.example.org:7443", r"h:1\"\nuser = \"root:1"), "address"
    ),
    "no such port": (lambda t: t.replace(":7443", ":77443"), "address: expected host:port"),
    "socket for an address": (
        lambda t: t.replace("notary.example.org:7443", "unix:7443"), "address: expected host:port"
    ),
    "no address": (lambda t: t.replace("notary.example.org:7443", ""), "address: expected one"),
    "no certificate": (lambda t: _with(t, "certificate", ""), "certificate: expected one"),
    "text for a certificate": (lambda t: _with(t, "certificate", "hello"), "got other text"),
    "two certificates": (
        lambda t: _with(t, "certificate", 2 * str(tomllib.loads(t)["certificate"])), "got 2"
    ),
    "brokers of a Helper": (lambda t: t.replace("brokers = []", 'brokers = ["k:1"]'), "brokers"),
}  # fmt: skip


def _with(text: str, key: str, value: str) -> str:
    lines = [line for line in text.splitlines() if not line.startswith(f"{key} =")]
    return "\n".join([*lines, f"{key} = {quoted(value)}", ""])


@pytest.mark.parametrize("kind", _HELPERS)
def test_hostile_card_is_refused_in_one_line_and_changes_nothing(
    kind: str, three: Three, tmp_path: Path
) -> None:
    vendor, notary, _ = three
    change, said = _HELPERS[kind]
    before = everything(vendor)
    with pytest.raises(CardRefused, match=said) as refused:
        take(vendor, change(notary.own_card.read_text()).encode(), tmp_path / "posted.toml")
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 600
    assert everything(vendor) == before


def test_every_byte_of_a_card_is_under_its_fingerprint(three: Three, tmp_path: Path) -> None:
    """Two texts that begin alike for 64 KiB once had one fingerprint."""
    vendor, notary, _ = three
    head = notary.own_card.read_bytes() + b"#" * (1 << 16)
    posted = tmp_path / "posted.toml"
    posted.write_bytes(head + b"\n[x]\n")
    with pytest.raises(CardRefused, match="at most"):
        take_card(vendor, posted, public_fingerprint(head[: 1 << 16]))


def test_card_that_changes_while_it_is_taken_is_kept_as_it_was_compared(
    three: Three,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    vendor, notary, acme = three
    honest, posted = notary.own_card.read_bytes(), tmp_path / "posted.toml"
    posted.write_bytes(honest)
    other = replace(notary.card(), public_key=acme.card().public_key).text

    def swapping(content: bytes) -> str:
        posted.write_text(other)
        return public_fingerprint(content)

    monkeypatch.setattr("pointillist.fleet.party_card.public_fingerprint", swapping)
    taken = take_card(vendor, posted, public_fingerprint(honest))
    assert posted.read_text() == other
    assert taken.public_key == notary.card().public_key
    assert (vendor.cards / "helper-notary.toml").read_bytes() == honest


@pytest.mark.parametrize(("low", "said"), [("0", "n_min: expected one"), ("1", "at least 16")])
def test_leader_cannot_talk_hosts_into_a_crowd_of_nobody(
    low: str, said: str, three: Three, tmp_path: Path
) -> None:
    vendor, _, acme = three
    text = vendor.own_card.read_text().replace("n_min = 32", f"n_min = {low}")
    with pytest.raises(CardRefused, match=said):
        take(acme, text.encode(), tmp_path / "posted.toml")


def test_one_party_cannot_be_two(three: Three, tmp_path: Path) -> None:
    """A Leader that is Helper too reads every report; one that is operator too makes hosts up."""
    vendor, notary, acme = three
    meet(acme, vendor)
    same_key = replace(notary.card(), public_key=vendor.card().public_key)
    with pytest.raises(CardRefused, match="public_key of its own, got that of the leader vendor"):
        take(acme, same_key.text.encode(), tmp_path / "posted.toml")
    same_tls = replace(notary.card(), certificate=vendor.card().certificate)
    with pytest.raises(CardRefused, match="certificate of its own"):
        take(acme, same_tls.text.encode(), tmp_path / "posted.toml")
    meet(notary, vendor)
    makes_hosts = PartyCard(vendor.card().public_key, OPERATOR, "crowd")
    with pytest.raises(CardRefused, match="public_key of its own"):
        take(notary, makes_hosts.text.encode(), tmp_path / "posted.toml")
    assert load_helper_config(notary.home("helper") / "helper.toml").operators == {}


def test_pairing_that_was_stopped_is_finished_by_the_same_command(
    three: Three, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At each write in turn: what it leaves is whole, and the same command ends well."""
    vendor, notary, acme = three
    real, writes = party_files._written, 0
    stop_at = 1

    def full(path: Path, text: str, mode: int) -> Path:
        nonlocal writes
        writes += 1
        if writes == stop_at:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        return real(path, text, mode)

    monkeypatch.setattr(party_files, "_written", full)
    stopped = 0
    for taker, other in ((notary, vendor), (notary, acme), (vendor, notary), (vendor, acme)):
        while True:
            writes = 0
            try:
                meet(taker, other)
            except OSError:
                stop_at, stopped = stop_at + 1, stopped + 1
                continue
            break
        stop_at = 1
    assert stopped == 9
    helper = load_helper_config(notary.home("helper") / "helper.toml")
    leader = load_leader_config(vendor.home("leader") / "leader.toml")
    assert (leader.helper_pk, helper.leader_pk) == (
        notary.card().public_key, vendor.card().public_key,
    )  # fmt: skip
    row = OperatorKey(acme.card().public_key, "acme")
    assert party_setup._operators(notary.home("helper") / "helper.toml") == [row]
    assert party_setup._operators(vendor.home("leader") / "plans.toml") == [row]
    with pytest.raises(CardRefused, match="first card of this party"):
        meet(vendor, notary)


def test_cards_that_are_taken_at_once_are_all_pinned(
    three: Three, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vendor, _, _ = three

    def slow(path: Path, text: str) -> None:
        time.sleep(0.05)
        replace_text(path, text)

    monkeypatch.setattr(party_files, "replace_text", slow)
    names = [f"operator-{number}" for number in range(4)]
    cards = [PartyCard(SigningKey.generate().public_bytes, OPERATOR, name).text for name in names]
    with ThreadPoolExecutor() as pool:
        list(
            pool.map(
                lambda text: take(
                    vendor, text.encode(), tmp_path / public_fingerprint(text.encode())
                ),
                cards,
            )
        )
    pinned = party_setup._operators(vendor.home("leader") / "plans.toml")
    assert sorted(row.name for row in pinned) == names


def test_broken_file_of_the_own_party_is_named(
    three: Three,
) -> None:
    vendor, _, acme = three
    plans = vendor.home("leader") / "plans.toml"
    for broken in ("[[plan", "operator = 1", '[[operator]]\nname = "x"\n'):
        plans.write_text(broken)
        with pytest.raises(CardRefused, match=r"plans\.toml"):
            meet(vendor, acme)


@pytest.mark.parametrize("name", ['a"b', "a\\b", "ünï", "🚀 space", "a'b", "a$(id)b", "a;b#c"])
def test_folder_of_any_name_has_configurations_that_load(name: str) -> None:
    with fleet_folder() as base:
        leads = PartyWishes(LEADER, "v", "v.example.org", ("k.example.org:1",), True, 40)
        vendor = begin_party(base / name / "v", leads)
        notary = begin_party(base / name / "n", PartyWishes(HELPER, "n", "n.example.org:2"))
        meet(vendor, notary)
        config = load_leader_config(vendor.home("leader") / "leader.toml")
        assert config.key_dir == vendor.home("leader") / "keys" / "leader"
        line = shell_line(("echo", f"{vendor.home('leader')}/*.toml", ""))
        words = subprocess.run(
            ["bash", "-c", line], capture_output=True, text=True, check=True
        ).stdout  # fmt: skip
    assert words.split(" \n")[0].count(".toml") == 3
    assert str(vendor.base) in words


@pytest.mark.parametrize("name", ["a\nb", "a\x1b[2Jb", "a*b", os.fsdecode(b"a\xffb"), "a\x7fb"])
def test_folder_that_no_configuration_can_name_is_refused(name: str) -> None:
    with fleet_folder() as base, pytest.raises(FolderUnusable, match="printable"):
        begin_party(base / name, PartyWishes(OPERATOR, "acme"))


def test_beginning_that_fails_leaves_nothing_and_can_be_repeated(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with fleet_folder() as base:
        there = base / "there"
        there.mkdir(mode=0o750)
        for folder in (base / "new", there):
            words = ["fleet", "init", str(folder), "--party", "helper", "--name", "n"]
            words += ["--address", "n.example.org:1"]
            monkeypatch.setattr("sys.argv", ["pointillist", *words])
            for error, code in ((OSError(errno.ENOSPC, "No space left on device"), 4),
                                (KeyboardInterrupt(), 130)):  # fmt: skip
                with monkeypatch.context() as broken:
                    broken.setattr(party_setup, "make_certificate", _raising(error))
                    with pytest.raises(SystemExit) as ended:
                        main()
                assert ended.value.code == code
            assert not folder.exists() if folder != there else list(folder.iterdir()) == []
            assert f"{folder}: No space left on device" in capsys.readouterr().err
            assert there.stat().st_mode & 0o777 == 0o750 or folder == there
            with pytest.raises(SystemExit) as ended:
                main()
            assert ended.value.code == 0
            assert not (folder / ".unfinished").exists()


def _raising(error: BaseException) -> Callable[..., str]:
    def fails(*_: object) -> str:
        raise error

    return fails


def test_two_that_begin_at_once_do_not_share_a_folder() -> None:
    with fleet_folder() as base:
        with new_folder(base / "f") as made:
            with pytest.raises(FolderUnusable, match="another `fleet init` is making"):
                begin_party(base / "f", PartyWishes(OPERATOR, "acme"))
            write_new(made / "mine", "")
        assert [path.name for path in (base / "f").iterdir()] == ["mine"]


def test_beginning_that_was_killed_says_what_to_remove() -> None:
    code = (
        "import os, sys; from pathlib import Path;"
        "from pointillist.fleet.party_files import new_folder;"
        "begun = new_folder(Path(sys.argv[1])); begun.__enter__(); os.kill(os.getpid(), 9)"
    )
    with fleet_folder() as base:
        subprocess.run([sys.executable, "-c", code, str(base / "f x")], check=False)
        with pytest.raises(FolderUnusable, match=f"rm -r '{base}/f x'"):
            begin_party(base / "f x", PartyWishes(OPERATOR, "acme"))


def test_file_is_written_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = tmp_path / "old"
    write_new(old, "before", 0o640)
    with pytest.raises(FileExistsError):
        write_new(old, "after")
    monkeypatch.setattr(os, "fsync", _raising(OSError(errno.ENOSPC, "No space left on device")))
    with pytest.raises(OSError, match="new"):
        write_new(tmp_path / "new", "text")
    with pytest.raises(OSError, match="old"):
        replace_text(old, "after")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("old", "before")]
    monkeypatch.undo()
    replace_text(old, "after")
    assert (old.read_text(), old.stat().st_mode & 0o777) == ("after", 0o640)


def test_printed_answer_of_pairing_has_nothing_that_a_terminal_acts_on(
    three: Three,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    vendor, _, acme = three
    text = vendor.own_card.read_text().replace("# The card", "# \\u202e\N{RIGHT-TO-LEFT OVERRIDE}")
    posted = vendor.base.parent / "posted.toml"
    posted.write_text(text)
    told = public_fingerprint(posted.read_bytes())
    words = ["pointillist", "fleet", "pair", str(acme.base), str(posted), "--fingerprint", told]
    monkeypatch.setattr("sys.argv", [*words, "--json"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    out = capsys.readouterr().out
    assert json.loads(out)["party"] == "operator"
    assert "\N{RIGHT-TO-LEFT OVERRIDE}" not in out


def test_agents_configuration_of_two_honest_cards_loads(
    three: Three,
) -> None:
    vendor, notary, acme = three
    meet(acme, vendor, notary)
    assert load_config(acme.home("operator") / "agent.toml", {}).bounds.n_min_at_least == 32


@pytest.mark.parametrize("broken", ["hosts = [", 'hosts = "many"'])
def test_plan_that_a_person_broke_is_named_by_what_comes_next(
    broken: str,
    three: Three,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    vendor, notary, acme = three
    meet(vendor, notary)
    plan = vendor.home("leader") / "plan.toml"
    plan.write_text(plan.read_text().replace("hosts = 40", broken))
    told = public_fingerprint(acme.own_card.read_bytes())
    pair = ["pair", str(vendor.base), str(acme.own_card), "--fingerprint", told]
    for words in (pair, ["next", str(vendor.base)]):
        monkeypatch.setattr("sys.argv", ["pointillist", "fleet", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 2
        assert str(plan) in capsys.readouterr().err
