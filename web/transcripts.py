"""The transcript's page and its answer in the API: opening either begins a check of the files."""

from __future__ import annotations

import stat
import time
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from threading import Event, Lock, Thread
from typing import Annotated, Final

from fastapi import FastAPI, Query, Request
from pydantic import BaseModel, Field
from starlette.responses import HTMLResponse

from pages.layout import Panel, Screen, TableCell, rendered
from pages.svg import moment_said
from pages.wording import ABSENT, counted

from .access_tokens import Viewer
from .application import PROBLEMS, admitted
from .page_answers import PageAnswers
from .pages_privacy import PAGE, TRANSCRIPT_ADDRESS
from .signed_chains import (
    ChainAnswer,
    ChainName,
    SignedChains,
    StoredChain,
    TranscriptFiles,
    check_apart,
    compare,
    stored_chains,
)
from .store_reading import PageState
from .store_watch import FAILURES, StoreStanding
from .view_panel import links, notices

EVERY_S: Final = 10.0
"""Files that change all the time are checked no more often, whoever asks how often."""
_PATIENCE_S: Final = 2.0
"""How long whoever began a check waits for its verdict before being told to come back."""

_Stamp = tuple[tuple[int, int, int, int], ...]


class CheckState(StrEnum):
    """How a check stands."""

    UNNAMED = "unnamed"
    MISSING = "missing"
    CHECKING = "checking"
    CHECKED = "checked"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class TranscriptCheck:
    """How the newest check stands, what is missing or refused, when the verdict was there."""

    state: CheckState
    detail: str = ""
    found: SignedChains | None = None
    checked_s: float = 0.0


class TranscriptChecker:
    """One check at a time; its verdict is kept until a file changes.."""

    def __init__(self, files: TranscriptFiles | None) -> None:
        self.files = files
        self._lock = Lock()
        self._ended = Event()
        self._stamp: _Stamp | None = None
        self._started_s: float | None = None
        self._check = TranscriptCheck(CheckState.CHECKING)

    def look(self, patience_s: float = _PATIENCE_S) -> TranscriptCheck:
        """Say how the check of the files stands as they are now, and begin it where it is due."""
        if self.files is None:
            return TranscriptCheck(CheckState.UNNAMED)
        try:
            stamp = _stamp(self.files)
        except OSError as error:
            return TranscriptCheck(CheckState.MISSING, error.strerror or "it cannot be read")
        with self._lock:
            if stamp == self._stamp:
                return self._check
            if self._started_s is not None and not (
                self._ended.is_set() and time.monotonic() - self._started_s >= EVERY_S
            ):
                return TranscriptCheck(CheckState.CHECKING)
            self._stamp, self._started_s = stamp, time.monotonic()
            self._check = TranscriptCheck(CheckState.CHECKING)
            self._ended.clear()
            Thread(target=self._go, args=(self.files,), name="transcripts", daemon=True).start()
        # Nobody else waits: answers to those who ask meanwhile come from few threads.
        return self.wait(patience_s)

    def wait(self, patience_s: float) -> TranscriptCheck:
        self._ended.wait(patience_s)
        return self._check

    def _go(self, files: TranscriptFiles) -> None:
        refused = "the check could not be run; why stands in the server's log"
        found = SignedChains({}, refused)
        try:
            found = check_apart(files)
        finally:
            state = CheckState.REFUSED if found.refused else CheckState.CHECKED
            self._check = TranscriptCheck(state, found.refused, found, time.time())
            self._ended.set()


def _stamp(files: TranscriptFiles) -> _Stamp:
    """Say which files these are now; raises OSError where one is no file."""
    found = []
    for path in (files.leader, files.helper):
        told = path.stat()
        if not stat.S_ISREG(told.st_mode):
            raise OSError(0, "expected a file, got something else")
        found.append((told.st_dev, told.st_ino, told.st_size, told.st_mtime_ns))
    return tuple(found)


AGREE: Final = "agree"
DIFFER: Final = "differ"
MOST_CHAINS: Final = 200  # that one answer names

_SAID: Final = {
    CheckState.UNNAMED: "This server was not told where the transcripts are.",
    CheckState.MISSING: (
        "A transcript is not where this server was told to find it; it may not be exported yet, as "
        "in a demo that still runs"
    ),
    CheckState.CHECKING: "The transcripts are being checked. This page comes back by itself.",
    CheckState.REFUSED: "The transcripts cannot be checked",
}


class TranscriptAnswer(BaseModel):
    """Whether Leader and Helper signed the same releases, and whether the store has these."""

    state: str = Field(
        description="agree, differ, nothing (to see), refused (no verdict), checking, missing or "
        "unnamed"
    )
    said: str
    checked_at: str | None = Field(description="when the files were checked, UTC")
    signed: int = Field(description="releases that both signed, of all chains that you may see")
    chains: list[ChainAnswer]
    more_chains: int = Field(description="chains beyond these")


class TranscriptAnswers:
    """The checker's verdict, and what of it each viewer may see."""

    def __init__(self, answers: PageAnswers, checker: TranscriptChecker) -> None:
        self.answers, self.checker = answers, checker
        self._lock = Lock()
        self._stored: tuple[str, Mapping[ChainName, StoredChain]] = ("", {})

    def answer(self, viewer: Viewer) -> TranscriptAnswer:
        """Say how the check stands, beginning it where it is due."""
        check = self.checker.look()
        if check.state is not CheckState.CHECKED or check.found is None:
            detail = f": {check.detail}" if check.detail else ""
            return TranscriptAnswer(
                state=check.state.value, said=f"{_SAID[check.state]}{detail}", signed=0, chains=[],
                checked_at=None, more_chains=0,
            )  # fmt: skip
        standing = self.answers.watch.standing()
        visible = self.answers.visible(standing, viewer)
        stored, unreadable = self._store(standing)
        chains = [
            compare(name, check.found.chains.get(name), stored.get(name, StoredChain()))
            for name in sorted({*check.found.chains, *stored})
            if visible is None or name[0] in visible
        ]
        return _verdict(check, chains, unreadable)

    def _store(self, standing: StoreStanding) -> tuple[Mapping[ChainName, StoredChain], str]:
        """Give the store's released windows, and why there are none to be read."""
        if not standing.readable:
            return {}, standing.detail
        with self._lock:
            if self._stored[0] != standing.generation:
                try:
                    windows = self.answers.watch.fleet().windows()
                except FAILURES:
                    return {}, "The store cannot be read now."
                self._stored = standing.generation, stored_chains(windows)
            return self._stored[1], ""


def _verdict(
    check: TranscriptCheck, chains: list[ChainAnswer], unreadable: str
) -> TranscriptAnswer:
    differ = [chain for chain in chains if chain.problems]
    signed = sum(chain.signed for chain in chains)
    if differ:
        state = DIFFER
        said = f"Not everything holds: {counted(len(differ), 'chain')} of {len(chains):,} below."
    elif not chains:
        state, said = "nothing", "The transcripts hold nothing that you may see."
    else:
        state = AGREE
        said = (
            f"Leader and Helper signed the same {counted(signed, 'release')}, each chained to the "
            "one before."
        )
    # What is wrong comes first: an answer names so many chains and no more.
    chains.sort(key=lambda chain: not chain.problems)
    return TranscriptAnswer(
        state=state,
        said=" ".join(filter(None, (said, _store_said(chains), unreadable))),
        checked_at=moment_said(check.checked_s),
        signed=signed,
        chains=chains[:MOST_CHAINS],
        more_chains=max(len(chains) - MOST_CHAINS, 0),
    )


def _store_said(chains: list[ChainAnswer]) -> str:
    parts = {
        "are among them": sum(chain.store_signed for chain in chains),
        "await the Helper's signature": sum(chain.store_waiting for chain in chains),
        "are newer than the transcripts": sum(chain.store_newer for chain in chains),
    }
    told = [f"{count:,} {what}" for what, count in parts.items() if count]
    return f"Of the releases that these pages show, {', '.join(told)}." if told else ""


API_ADDRESS: Final = "/api/v1/transcript"
_AGAIN_S: Final = 2
_WITHOUT_VERDICT: Final = frozenset(
    {CheckState.UNNAMED.value, CheckState.MISSING.value, CheckState.REFUSED.value}
)

_SHOWN: Final = (
    "pointillist web --leader-transcript leader.json --helper-transcript helper.json "
    "--leader KEY --helper KEY"
)
_STEPS: Final = (
    ("The Leader exports", "pointillist leader transcript export leader.sqlite leader.json"),
    ("The Helper exports", "pointillist leader transcript export helper.sqlite helper.json"),
    ("These pages are told", _SHOWN),
)
_NOTE: Final = (
    "Both parties signed the hash of the whole vector of sums. A store has its named cells alone, "
    "so what is compared with it is that a window is there, and of how many hosts; hosts are known "
    "for a week."
)
_CHAINS: Final = (
    "Each release names the hash of the one before: the newest one's, whose first digits are the "
    "head, stands for the whole chain. Awaiting: signed by the Leader alone so far. Here: in the "
    "store of these pages. Newer: made after the export."
)
_HOW: Final = (
    "Each party exports its own transcript. It holds signatures, hashes and random ids of reports: "
    "no host's numbers, and no host's name."
)
_HEADS: Final = (
    ("Series", False), ("Cohort", True), ("Both signed", True), ("First", True), ("Newest", True),
    ("Awaiting", True), ("Shown here", True), ("Newer here", True), ("Not here", True),
    ("Head", True),
)  # fmt: skip
_HEAD_DIGITS: Final = 12


def add_transcript(app: FastAPI, transcripts: TranscriptAnswers) -> None:
    """Serve the page and its answer; the guard has let the viewer in."""

    @app.get(TRANSCRIPT_ADDRESS, include_in_schema=False)
    def page(request: Request, state: Annotated[PageState, Query()]) -> HTMLResponse:
        viewer = admitted(request, PAGE.roles, f"{PAGE.title} is")
        text = _html(transcripts, viewer, state)
        return HTMLResponse(text, headers={"cache-control": "no-store"})

    @app.get(
        API_ADDRESS, summary="Whether both parties signed what is released", responses=PROBLEMS
    )
    def api(request: Request) -> TranscriptAnswer:
        return transcripts.answer(admitted(request, PAGE.roles, f"{PAGE.title} is"))


def _html(transcripts: TranscriptAnswers, viewer: Viewer, state: PageState) -> str:
    answer, answers = transcripts.answer(viewer), transcripts.answers
    checking = answer.state == CheckState.CHECKING.value
    title = {AGREE: "They agree", DIFFER: "They differ"}.get(answer.state, "No verdict")
    when = f" Checked at {answer.checked_at} UTC." if answer.checked_at else ""
    verdict = Panel(
        "verdict", title, answer.said + when,
        note=_NOTE if answer.chains else "",
        files=[("JSON", API_ADDRESS)],
        action=("Check again", TRANSCRIPT_ADDRESS),
        query=list(state.written().items()),
    )  # fmt: skip
    panels = [verdict]
    if answer.chains:
        more = f"{answer.more_chains:,} more chains are not shown." if answer.more_chains else ""
        rows = [_row(chain) for chain in answer.chains]
        panels.append(
            Panel("chains", "Chains", _CHAINS, heads=_HEADS, rows=rows, unfolded=True, more=more)
        )
        panels += _problems(answer)
    if answer.state in _WITHOUT_VERDICT:
        steps = [[TableCell(who), TableCell(command)] for who, command in _STEPS]
        heads = (("Who", False), ("Command", False))
        how = Panel("how", "How to make them", _HOW, heads=heads, rows=steps, unfolded=True)
        panels.append(how)
    return rendered(
        Screen(
            title="Transcript",
            question="Did Leader and Helper both sign the releases that these pages show?",
            links=links(answers.pages, viewer, state, PAGE.name),
            panels=panels,
            notices=[n for n in notices(answers.watch.standing()) if n.kind == "simulated"],
            status="Checking a transcript changes nothing, and costs no privacy budget.",
            refresh_s=_AGAIN_S if checking else None,
        )
    )


def _row(chain: ChainAnswer) -> list[TableCell]:
    first, newest, head = chain.first_window, chain.newest_window, chain.head[:_HEAD_DIGITS]
    counts = (chain.waiting, chain.store_signed, chain.store_newer, chain.store_absent)
    texts = [str(chain.cohort), f"{chain.signed:,}", first or ABSENT, newest or ABSENT]
    texts += [*(f"{count:,}" for count in counts), head or ABSENT]
    return [TableCell(chain.series), *(TableCell(text, number=True) for text in texts)]


def _problems(answer: TranscriptAnswer) -> list[Panel]:
    rows = [
        [TableCell(f"{chain.series}, cohort {chain.cohort}"), TableCell(problem)]
        for chain in answer.chains
        for problem in chain.problems
    ]
    if not rows:
        return []
    more = sum(chain.more_problems for chain in answer.chains)
    words = "A number of such a window is not what both parties signed; ask both what happened."
    return [
        Panel(
            "problems", "What does not hold", words, heads=(("Chain", False), ("What", False)),
            rows=rows, unfolded=True, more=f"{more:,} more are not shown." if more else "",
        )
    ]  # fmt: skip
