"""The transcript behind its button: what holds, what does not, who may see it, hostile files."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from html import unescape
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from starlette.testclient import TestClient

from aggregator.transcripts import transcript_check
from tests.protocol_kit import SERIES, T0, WINDOW_S, signing_key
from tests.transcript_kit import WINDOWS, SignedFleet, alter, flip, sign_and_export, store_of
from tests.web_kit import add_token, client
from web import signed_chains, transcripts
from web.access_tokens import SeriesOwners
from web.page_shape import Role
from web.signed_chains import SignedChains, TranscriptFiles, check, check_apart
from web.transcripts import CheckState, TranscriptCheck, TranscriptChecker

PAGE, API = "/privacy/transcript", "/api/v1/transcript"


@pytest.fixture(autouse=True)
def _checked_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """A check runs in this process, but where its own is what is looked at."""
    monkeypatch.setattr("web.transcripts.check_apart", check)
    monkeypatch.setattr("web.transcripts.EVERY_S", 0.0)
    monkeypatch.setattr("web.store_watch.EVERY_S", 0.0)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> SignedFleet:
    folder = tmp_path_factory.mktemp("signed")
    return SignedFleet(sign_and_export(folder), store_of(folder))


@pytest.fixture
def signed(kept: SignedFleet, tmp_path: Path) -> SignedFleet:
    """The exports as a test may change them."""
    paths = [shutil.copy(path, tmp_path) for path in (kept.files.leader, kept.files.helper)]
    leader, helper = map(Path, paths)
    return SignedFleet(TranscriptFiles(leader, helper, kept.files.parties), kept.store)


@pytest.fixture
def asked(signed: SignedFleet) -> Iterator[TestClient]:
    with client(signed.store, transcripts=signed.files) as found:
        yield found


def answer_of(fleet: SignedFleet) -> dict[str, Any]:
    with client(fleet.store, transcripts=fleet.files) as asked:
        found: dict[str, Any] = asked.get(API).json()
    return found


def test_button_and_its_page_keep_what_is_looked_at(asked: TestClient) -> None:
    button = '<input type="hidden" name="span" value="week"><button type="submit">'
    assert f"{button}Verify the transcript" in asked.get("/privacy?span=week").text
    page = asked.get(f"{PAGE}?span=week").text
    assert f"{button}Check again" in page
    assert 'href="/fleet?span=week"' in page
    assert asked.get(f"{PAGE}?span=none").status_code == 422


def test_button_leads_to_what_both_signed(asked: TestClient) -> None:
    assert f'action="{PAGE}"><button type="submit">Verify the transcript' in (
        asked.get("/privacy").text
    )
    page, answer = unescape(asked.get(PAGE).text), asked.get(API).json()
    (chain,) = answer["chains"]
    assert (answer["state"], answer["signed"]) == ("agree", WINDOWS)
    assert (chain["series"], chain["cohort"], chain["signed"]) == (SERIES, 0, WINDOWS)
    assert (chain["store_signed"], chain["store_newer"], chain["store_absent"]) == (WINDOWS, 0, 0)
    assert "They agree" in page
    assert "Leader and Helper signed the same 3 releases" in page
    assert (chain["first_window"], chain["newest_window"]) == (
        "2023-11-14 22:14", "2023-11-14 22:16",
    )  # fmt: skip
    assert chain["head"][:12] in page
    assert chain["problems"] == []


@pytest.mark.parametrize("side", ["leader", "helper"])
@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda links: links.pop(1), "chain is broken"),
        (lambda links: links.pop(), "no such release"),
        (lambda links: links[1].update(release=flip(links[1]["release"], 300)), "signature"),
        (lambda links: links[1].update(batch_hash="00" * 32), "another batch"),
        (lambda links: links[0].update(reports="00" * 32), "different reports"),
        (lambda links: links[2].update(window=links[2]["window"] + WINDOW_S), "no such release"),
    ],
)
def test_tampered_transcript_is_told_and_its_releases_are_not_called_signed(
    signed: SignedFleet, change: Callable[[list[Any]], object], told: str, side: str
) -> None:
    alter(getattr(signed.files, side), change)
    chain = check(signed.files).chains[SERIES, 0]
    assert any(told in problem for problem in chain.problems)
    assert len(chain.windows) < WINDOWS


def test_release_that_no_transcript_has_is_told(kept: SignedFleet, tmp_path: Path) -> None:
    store = store_of(tmp_path, WINDOWS, series="hour")
    answer = answer_of(SignedFleet(kept.files, store))
    found = {chain["series"]: chain for chain in answer["chains"]}
    assert answer["state"] == "differ"
    assert found["hour"]["problems"] == [
        "3 releases in the store, and the transcripts have no such chain"
    ]
    assert found[SERIES]["store_absent"] == WINDOWS


def test_window_between_that_was_not_signed_is_told(signed: SignedFleet) -> None:
    for path in (signed.files.leader, signed.files.helper):
        alter(path, lambda links: links.pop(1))
    (chain,) = answer_of(signed)["chains"]
    # The one after it names a release that nobody shows.
    said = f"windows {T0 + WINDOW_S}, {T0 + 2 * WINDOW_S}: in the store, and not signed by both"
    assert f"{said} parties" in chain["problems"]


def test_release_newer_than_the_export_is_no_problem(kept: SignedFleet, tmp_path: Path) -> None:
    answer = answer_of(SignedFleet(kept.files, store_of(tmp_path, WINDOWS + 2)))
    (chain,) = answer["chains"]
    assert (answer["state"], chain["store_newer"]) == ("agree", 2)
    assert "2 are newer than the transcripts" in answer["said"]


def test_release_that_awaits_the_helper_is_no_problem(signed: SignedFleet) -> None:
    def wait(links: list[Any]) -> None:
        links[-1]["release"] = links[-1]["release"][:-128] + "00" * 64

    alter(signed.files.leader, wait)
    alter(signed.files.helper, lambda links: links.pop())
    answer = answer_of(signed)
    (chain,) = answer["chains"]
    assert (answer["state"], chain["waiting"], chain["store_waiting"]) == ("agree", 1, 1)


def test_keys_of_others_are_told(signed: SignedFleet) -> None:
    other = signing_key("another").public_bytes
    parties = replace(signed.files.parties, helper_pk=other)
    chain = check(replace(signed.files, parties=parties)).chains[SERIES, 0]
    assert len(chain.windows) == 0
    assert "the Helper's signature does not hold" in chain.problems[0]


def test_one_party_s_file_is_not_taken_for_both(signed: SignedFleet) -> None:
    found = check(replace(signed.files, helper=signed.files.leader))
    assert found.chains == {}
    assert "expected the helper's, got one of 'leader'" in found.refused


def test_page_without_transcripts_says_how_to_make_them(
    signed: SignedFleet, asked: TestClient
) -> None:
    with client(signed.store) as without:
        page, state = without.get(PAGE).text, without.get(API).json()["state"]
    assert state == "unnamed"
    assert "pointillist leader transcript export helper.sqlite helper.json" in page
    signed.files.helper.unlink()
    assert asked.get(API).json()["state"] == "missing"
    assert "How to make them" in asked.get(PAGE).text


HOSTILE: dict[str, Callable[[bytes], bytes]] = {
    "not JSON": lambda _: b"SQLite format 3\0" + bytes(100),
    "empty": lambda _: b"",
    "cut off": lambda body: body[: len(body) // 2],
    "deep": lambda _: b'{"links": ' + b"[" * 100_000,
    "deep in a link": lambda _: b'{"links": [{"report_ids": ' + b"[" * 50 + b"]" * 50 + b"}]}",
    "long text": lambda _: b'{"party": "' + b"x" * 70_000 + b'"}',
    "many parts": lambda _: b'{"links": [[' + b"0," * 2_000 + b"0]]}",
    "no links": lambda _: b'{"links": {"a": 1}, "format": 1}',
    "wrong kind": lambda _: b'{"links": [{"series": 1, "cohort": "0", "window": 1.5}]}',
    "out of order": lambda body: _with_links(body, lambda links: links.reverse()),
    "hostile series": lambda body: _with_links(
        body, lambda links: links[0].update(series="<script>alert(1)</script>")
    ),
    "many chains": lambda body: _with_links(
        body, lambda links: links.extend(dict(links[-1], cohort=at) for at in range(1, 9))
    ),
    "nothing said of itself": lambda _: b"{}",
}


def _with_links(body: bytes, change: Callable[[list[Any]], object]) -> bytes:
    document = json.loads(body)
    change(document["links"])
    return json.dumps(document).encode()


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_file_is_refused_in_words(
    signed: SignedFleet, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signed_chains, "MOST_TEXT_BYTES", 60_000)
    monkeypatch.setattr(signed_chains, "MOST_CHAINS", 4)
    monkeypatch.setattr(transcript_check, "MOST_PARTS", 1_000)
    path = signed.files.leader
    path.write_bytes(HOSTILE[kind](path.read_bytes()))
    found = check(signed.files)
    assert found.chains == {}
    assert found.refused.startswith("the Leader's transcript: expected ") or kind in {
        "out of order", "many chains",
    }  # fmt: skip
    assert "expected " in found.refused
    assert str(path) not in found.refused
    assert len(found.refused) < 300


def test_refused_file_is_said_on_the_page(signed: SignedFleet, asked: TestClient) -> None:
    signed.files.helper.write_text('{"format": "<script>alert(1)</script>"}')
    answer, page = asked.get(API).json(), asked.get(PAGE)
    assert (answer["state"], answer["chains"], page.status_code) == ("refused", [], 200)
    assert "The transcripts cannot be checked: the Helper's transcript: expected" in answer["said"]
    assert "<script>alert" not in page.text


def test_file_above_the_bound_is_not_read(
    signed: SignedFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signed_chains, "MOST_EXPORT_BYTES", 1_000)
    found = check(signed.files)
    assert "expected at most 1000 bytes, got " in found.refused


def test_auditor_verifies_and_an_operator_s_chain_is_its_own(
    signed: SignedFleet, tmp_path: Path
) -> None:
    tokens = tmp_path / "tokens.json"
    owners = SeriesOwners(frozenset(), {"acme": frozenset({SERIES})})
    roles = (
        ("eve", Role.AUDITOR, None), ("a1", Role.OPERATOR, "acme"), ("z1", Role.OPERATOR, "zeta"),
    )  # fmt: skip
    alter(signed.files.leader, lambda links: links.pop(1))
    seen: dict[tuple[str, bool], tuple[str, int]] = {}
    for owned in (SeriesOwners(frozenset({SERIES})), owners):
        with client(
            signed.store, token_file=tokens, owners=owned, transcripts=signed.files
        ) as asked:
            assert asked.get(API).status_code == 401
            for name, role, operator in roles:
                header = add_token(tokens, f"{name}.{len(seen)}", role, operator)
                answer, page = asked.get(API, headers=header), asked.get(PAGE, headers=header)
                assert (answer.status_code, page.status_code) == (200, 200)
                found = answer.json()
                seen[name, owned is owners] = found["state"], len(found["chains"])
                assert (SERIES in page.text) == (len(found["chains"]) == 1)
    everybody = {(name, False): ("differ", 1) for name in ("eve", "a1", "z1")}
    alone = {
        ("eve", True): ("nothing", 0), ("a1", True): ("differ", 1), ("z1", True): ("nothing", 0),
    }  # fmt: skip
    assert seen == everybody | alone


def test_verdict_is_kept_until_a_file_changes(
    signed: SignedFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = []

    def run(files: TranscriptFiles) -> SignedChains:
        runs.append(files)
        return check(files)

    monkeypatch.setattr(transcripts, "check_apart", run)
    checker = TranscriptChecker(signed.files)
    assert [checker.look(60.0).state for _ in range(3)] == [CheckState.CHECKED] * 3
    assert len(runs) == 1
    alter(signed.files.leader, lambda links: links.pop())
    found = checker.look(60.0).found
    assert (len(runs), found and found.chains[SERIES, 0].problems != []) == (2, True)


def test_files_that_change_all_the_time_are_checked_seldom(
    signed: SignedFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transcripts, "EVERY_S", 3_600.0)
    checker = TranscriptChecker(signed.files)
    assert checker.look(60.0).state is CheckState.CHECKED
    alter(signed.files.leader, lambda links: links.pop())
    assert checker.look(60.0) == TranscriptCheck(CheckState.CHECKING)


def test_check_that_does_not_end_holds_up_nobody(
    signed: SignedFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = Event()

    def run(files: TranscriptFiles) -> SignedChains:
        assert go_on.wait(60.0)
        return check(files)

    monkeypatch.setattr(transcripts, "check_apart", run)
    checker = TranscriptChecker(signed.files)
    try:
        assert [checker.look(0.0).state for _ in range(3)] == [CheckState.CHECKING] * 3
    finally:
        go_on.set()
    assert checker.wait(60.0).state is CheckState.CHECKED


def test_check_runs_in_a_process_that_can_be_ended(signed: SignedFleet) -> None:
    found = check_apart(signed.files)
    assert found.chains[SERIES, 0].windows.tolist() == [T0 + at * WINDOW_S for at in range(WINDOWS)]
    stopped = check_apart(signed.files, 0.0)
    assert stopped.refused == "expected an end of the check in 0 s, got none"


def test_many_chains_are_named_with_what_is_wrong_first(
    signed: SignedFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transcripts, "MOST_CHAINS", 1)
    store = store_of(signed.files.leader.parent, 1, series="zz")
    answer = answer_of(SignedFleet(signed.files, store))
    assert [chain["series"] for chain in answer["chains"]] == ["zz"]
    assert answer["more_chains"] == 1
