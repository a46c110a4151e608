"""What is said of the transcripts to one viewer: the verdict, chains, the store beside them."""

from __future__ import annotations

from collections.abc import Mapping
from threading import Lock
from typing import Final

from pydantic import BaseModel, Field

from pages.scale import moment_said
from pages.wording import counted

from .page_answers import PageAnswers
from .signed_chains import ChainName, SignedChain
from .signed_store import NOTHING, StoredChain, compare, stored_chains
from .store_watch import FAILURES, StoreStanding, StoreState
from .transcript_checker import CheckState, TranscriptCheck, TranscriptChecker
from .viewers import Viewer

AGREE: Final = "agree"
DIFFER: Final = "differ"
NOTHING_SEEN: Final = "nothing"
MOST_CHAINS: Final = 200
"""That one answer names."""

_SAID: Final = {
    CheckState.UNNAMED: "This server was not told where the transcripts are.",
    CheckState.MISSING: (
        "A transcript is not where this server was told to find it; it may not be exported yet, as "
        "in a demo that still runs"
    ),
    CheckState.CHECKING: "The transcripts are being checked. This page comes back by itself.",
    CheckState.REFUSED: "The transcripts cannot be checked",
}


class ChainAnswer(BaseModel):
    """One chain of releases in both transcripts, and the same releases in the store."""

    series: str
    cohort: int
    signed: int = Field(description="releases that both parties signed and say the same of")
    waiting: int = Field(description="releases that the Leader alone has signed so far")
    first_window: str | None = Field(description="start of the first that both signed, UTC")
    newest_window: str | None = Field(description="start of the newest that both signed, UTC")
    head: str = Field(description="SHA-256 of the Leader's newest release, hex")
    store_signed: int = Field(description="releases in the store that are among them")
    store_waiting: int = Field(description="releases in the store that await the Helper")
    store_newer: int = Field(description="releases in the store that came after the export")
    store_absent: int = Field(description="signed releases that the store does not have")
    problems: list[str] = Field(description="what does not hold; windows in unix seconds")
    more_problems: int = Field(description="what does not hold beyond these")


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
            _chain(name, check.found.chains.get(name), stored.get(name, NOTHING))
            for name in sorted({*check.found.chains, *stored})
            if visible is None or name[0] in visible
        ]
        return _verdict(check, chains, unreadable)

    def _store(self, standing: StoreStanding) -> tuple[Mapping[ChainName, StoredChain], str]:
        """Give the store's released windows, and why there are none to be read."""
        if standing.state not in {StoreState.WELL, StoreState.STALE}:
            return {}, standing.detail
        with self._lock:
            if self._stored[0] != standing.generation:
                try:
                    windows = self.answers.watch.fleet().windows()
                except FAILURES:
                    return {}, "The store cannot be read now."
                self._stored = standing.generation, stored_chains(windows)
            return self._stored[1], ""


def _chain(name: ChainName, chain: SignedChain | None, stored: StoredChain) -> ChainAnswer:
    match = compare(chain, stored)
    kept = SignedChain() if chain is None else chain
    starts = kept.windows
    return ChainAnswer(
        series=name[0],
        cohort=name[1],
        signed=len(starts),
        waiting=len(kept.waiting),
        first_window=moment_said(min(starts)) if starts else None,
        newest_window=moment_said(max(starts)) if starts else None,
        head=kept.head.hex(),
        store_signed=match.signed,
        store_waiting=match.waiting,
        store_newer=match.newer,
        store_absent=match.absent,
        problems=[*kept.problems, *match.problems],
        more_problems=kept.more,
    )


def _verdict(
    check: TranscriptCheck, chains: list[ChainAnswer], unreadable: str
) -> TranscriptAnswer:
    differ = [chain for chain in chains if chain.problems]
    signed = sum(chain.signed for chain in chains)
    state = AGREE
    if differ:
        state = DIFFER
        said = f"Not everything holds: {counted(len(differ), 'chain')} of {len(chains):,} below."
    elif not chains:
        state = NOTHING_SEEN
        said = "The transcripts hold nothing that you may see."
    else:
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
