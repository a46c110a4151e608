"""What both parties signed, from their exported transcripts, and the store beside it.

The files are as long as whoever exported them made them: they are read window by window, in a
process that can be ended, so pages go on meanwhile.

Both signed a hash of the whole vector of sums; a store has its named cells alone, so what is
compared is that a window is in both, and of how many hosts.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd
from pydantic import BaseModel, Field

from aggregator.protocol.directory import PinnedParties
from aggregator.transcripts.evidence import UnreleasedShare, compare_unreleased
from aggregator.transcripts.transcript_check import (
    HELPER,
    LEADER,
    LINKS,
    MOST_EXPORT_BYTES,
    UNRELEASED,
    CheckedWindow,
    Link,
    TranscriptRefused,
    checked_windows,
    export_parts,
)
from pages.svg import moment_said
from transport.process.unforeseen import told

MOST_TEXT_BYTES: Final = 16 << 20  # of one text: the batch of 110,000 hosts, in hex
MOST_CHAINS: Final = 10_000
MOST_SHARE_BYTES: Final = 64 << 20
"""Of answered batches without a release together: thousands of a week."""
MOST_PROBLEMS: Final = 50  # that are kept of a chain; the rest is counted
LIMIT_S: Final = 120.0
_NICENESS: Final = 10

ChainName = tuple[str, int]  # series and cohort


@dataclass(frozen=True, slots=True)
class TranscriptFiles:
    """Both parties' exports, and the keys that they are held to."""

    leader: Path
    helper: Path
    parties: PinnedParties


@dataclass(slots=True)
class SignedChain:
    """One chain of releases, as both transcripts have it.

    windows    starts of the windows whose release both signed and say the same of, unix seconds
    hosts      accepted hosts of each; -1 where neither says it any more
    waiting    starts of windows that the Leader alone has signed so far
    last_s     the newest window of either party
    head       hash of the Leader's newest release
    problems   what does not hold, in sentences; `more` beyond those that are kept
    """

    windows: array[int] = field(default_factory=lambda: array("q"))
    waiting: array[int] = field(default_factory=lambda: array("q"))
    last_s: int = 0
    head: bytes = b""
    problems: list[str] = field(default_factory=list)
    more: int = 0

    def take(self, window: CheckedWindow) -> None:
        self.last_s = window.link.window
        if window.ours is not None:
            self.head = window.ours.release.release.hash()
        for problem in window.problems:
            self.tell(f"window {window.link.window}{problem}")
        if window.problems:
            return
        if window.unsigned:
            self.waiting.append(window.link.window)
        else:
            self.windows.append(window.link.window)

    def tell(self, problem: str) -> None:
        """Keep a problem, or count it."""
        if len(self.problems) < MOST_PROBLEMS:
            self.problems.append(problem)
        else:
            self.more += 1


@dataclass(frozen=True, slots=True)
class SignedChains:
    """What a check found; `refused` says why there was none to be found."""

    chains: dict[ChainName, SignedChain]
    refused: str = ""


def check_apart(files: TranscriptFiles, limit_s: float = LIMIT_S) -> SignedChains:
    """Check the files in a process of its own, which is ended after so long."""
    spawn = get_context("spawn")
    ours, theirs = spawn.Pipe(duplex=False)
    child = spawn.Process(target=_check_and_tell, args=(theirs, files), daemon=True)
    child.start()
    theirs.close()
    try:
        if not ours.poll(limit_s):
            return SignedChains({}, f"expected an end of the check in {limit_s:g} s, got none")
        found: SignedChains = ours.recv()
        return found
    except EOFError:
        return SignedChains({}, "expected a verdict, and the check ended without one")
    finally:
        child.kill()
        child.join()
        child.close()
        ours.close()


def _check_and_tell(to: Connection, files: TranscriptFiles) -> None:
    os.nice(_NICENESS)
    with told():
        to.send(check(files))


def check(files: TranscriptFiles) -> SignedChains:
    """Check both exports and that they are one; memory is that of a window and of its numbers."""
    leader, helper = _Export(LEADER, files.leader), _Export(HELPER, files.helper)
    chains: dict[ChainName, SignedChain] = {}

    def chain_of(series: str, cohort: int) -> SignedChain:
        if (series, cohort) not in chains and len(chains) >= MOST_CHAINS:
            raise TranscriptRefused(f"expected at most {MOST_CHAINS} chains, got more")
        return chains.setdefault((series, cohort), SignedChain())

    try:
        for window in checked_windows(leader.links(), helper.links(), files.parties):
            chain_of(window.link.series, window.link.cohort).take(window)
        problems = compare_unreleased(leader.unreleased, helper.unreleased, files.parties.helper_pk)
        for share, problem in problems:
            chain_of(share.series, share.cohort).tell(f"window {share.window}: {problem}")
    except TranscriptRefused as error:
        return SignedChains({}, str(error))
    return SignedChains(chains)


@dataclass(slots=True)
class _Export:
    """One party's export, read once; `unreleased` is whole when its links are at their end."""

    party: str
    path: Path
    unreleased: list[UnreleasedShare] = field(default_factory=list)

    def links(self) -> Iterator[Link]:
        """Give its links. Raises TranscriptRefused, which names the party and not the file."""
        room = MOST_SHARE_BYTES
        try:
            for kind, part in export_parts(
                self.path, most_bytes=MOST_EXPORT_BYTES, most_text=MOST_TEXT_BYTES
            ):
                if kind == "party" and part != self.party:
                    raise TranscriptRefused(
                        f"expected the {self.party}'s, got one of {part[:20]!r}"
                    )
                if kind == LINKS:
                    yield part
                elif kind == UNRELEASED:
                    room -= len(part.share) + len(part.reason) + len(part.series) + 500
                    if room < 0:
                        raise TranscriptRefused(
                            f"expected at most {MOST_SHARE_BYTES} bytes of suppressed windows, got "
                            "more"
                        )
                    self.unreleased.append(part)
        except (TranscriptRefused, OSError) as error:
            said = error.strerror if isinstance(error, OSError) else error
            raise TranscriptRefused(f"the {self.party.capitalize()}'s transcript: {said}") from None


Whole = npt.NDArray[np.int64]
_SHOWN: Final = 5


@dataclass(frozen=True, slots=True)
class StoredChain:
    """Released windows of one cohort in the store: int64[n] starts, unix seconds."""

    starts: Whole = field(default_factory=lambda: np.zeros(0, np.int64))


def stored_chains(windows: pd.DataFrame) -> dict[ChainName, StoredChain]:
    """Take the released windows of each cohort from rows of the view `windows`."""
    released = windows[windows["outcome"] == "released"]
    return {
        (str(series), int(rows["cohort"].iloc[0])): StoredChain(
            rows["window_start"].to_numpy("datetime64[s]").astype(np.int64)
        )
        for (series, _), rows in released.groupby(["series", "cohort"])
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


def compare(name: ChainName, found: SignedChain | None, stored: StoredChain) -> ChainAnswer:
    """Compare one cohort's releases with its chain; None where the transcripts have none."""
    chain, starts = found or SignedChain(), stored.starts
    windows = np.sort(np.array(chain.windows, np.int64))
    signed = np.isin(starts, windows)
    newer = starts > chain.last_s if found else np.zeros(len(starts), np.bool_)
    waiting = np.isin(starts, np.array(chain.waiting, np.int64)) & ~signed
    problems = _said(
        starts[~(signed | newer | waiting)], "in the store, and not signed by both parties"
    )
    if found is None:
        said = f"{len(starts):,} releases in the store, and the transcripts have no such chain"
        problems = [said]
    return ChainAnswer(
        series=name[0],
        cohort=name[1],
        signed=len(windows),
        waiting=len(chain.waiting),
        first_window=moment_said(windows[0]) if len(windows) else None,
        newest_window=moment_said(windows[-1]) if len(windows) else None,
        head=chain.head.hex(),
        store_signed=int(signed.sum()),
        store_waiting=int(waiting.sum()),
        store_newer=int(newer.sum()),
        store_absent=int((~np.isin(windows, starts)).sum()),
        problems=[*chain.problems, *problems],
        more_problems=chain.more,
    )


def _said(starts: Whole, what: str) -> list[str]:
    if not len(starts):
        return []
    some = ", ".join(str(start) for start in starts[:_SHOWN].tolist())
    more = f" and {len(starts) - _SHOWN:,} more" if len(starts) > _SHOWN else ""
    return [f"window{'s' if len(starts) > 1 else ''} {some}{more}: {what}"]
