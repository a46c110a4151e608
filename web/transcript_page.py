"""The transcript's page and its answer in the API: opening either begins the check."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import FastAPI, Query, Request
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse

from pages.layout import Panel, Screen, TableCell, rendered
from pages.wording import ABSENT

from .application import PROBLEMS
from .page_frame import links, notices
from .page_state import PageState
from .pages_privacy import PAGE, TRANSCRIPT_ADDRESS
from .transcript_answers import AGREE, ChainAnswer, TranscriptAnswer, TranscriptAnswers
from .transcript_checker import CheckState
from .viewers import Viewer

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
_HEADS: Final = (
    ("Series", False), ("Cohort", True), ("Both signed", True), ("First", True), ("Newest", True),
    ("Awaiting", True), ("Shown here", True), ("Newer here", True), ("Not here", True),
    ("Head", True),
)  # fmt: skip
_HEAD_DIGITS: Final = 12


def add_transcript(app: FastAPI, transcripts: TranscriptAnswers) -> None:
    """Serve the page and its answer; the guard has let the viewer in."""

    def admitted(request: Request) -> Viewer:
        viewer: Viewer = request.state.viewer
        if viewer.role not in PAGE.roles:
            raise HTTPException(403, f"{PAGE.title} is not for the role {viewer.role}.")
        return viewer

    @app.get(TRANSCRIPT_ADDRESS, include_in_schema=False)
    def page(request: Request, state: Annotated[PageState, Query()]) -> HTMLResponse:
        viewer = admitted(request)
        text = _html(transcripts, viewer, state)
        return HTMLResponse(text, headers={"cache-control": "no-store"})

    @app.get(
        API_ADDRESS, summary="Whether both parties signed what is released", responses=PROBLEMS
    )
    def api(request: Request) -> TranscriptAnswer:
        return transcripts.answer(admitted(request))


def _html(transcripts: TranscriptAnswers, viewer: Viewer, state: PageState) -> str:
    answer, answers = transcripts.answer(viewer), transcripts.answers
    checking = answer.state == CheckState.CHECKING.value
    panels = [_verdict(answer, state)]
    if answer.chains:
        panels += [_chains(answer), *_problems(answer)]
    if answer.state in _WITHOUT_VERDICT:
        panels.append(_how())
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


def _verdict(answer: TranscriptAnswer, state: PageState) -> Panel:
    title = {AGREE: "They agree", "differ": "They differ"}.get(answer.state, "No verdict")
    when = f" Checked at {answer.checked_at} UTC." if answer.checked_at else ""
    return Panel(
        "verdict", title, answer.said + when,
        note=_NOTE if answer.chains else "",
        files=[("JSON", API_ADDRESS)],
        action=("Check again", TRANSCRIPT_ADDRESS),
        query=list(state.written().items()),
    )  # fmt: skip


def _chains(answer: TranscriptAnswer) -> Panel:
    words = (
        "Each release names the hash of the one before: the newest one's, whose first digits are "
        "the head, stands for the whole chain. Awaiting: signed by the Leader alone so far. Here: "
        "in the store of these pages. Newer: made after the export."
    )
    more = f"{answer.more_chains:,} more chains are not shown." if answer.more_chains else ""
    return Panel(
        "chains", "Chains", words, heads=_HEADS, rows=[_row(c) for c in answer.chains],
        unfolded=True, more=more,
    )  # fmt: skip


def _row(chain: ChainAnswer) -> list[TableCell]:
    return [
        TableCell(chain.series),
        TableCell(str(chain.cohort), number=True),
        TableCell(f"{chain.signed:,}", number=True),
        TableCell(chain.first_window or ABSENT, number=True),
        TableCell(chain.newest_window or ABSENT, number=True),
        TableCell(f"{chain.waiting:,}", number=True),
        TableCell(f"{chain.store_signed:,}", number=True),
        TableCell(f"{chain.store_newer:,}", number=True),
        TableCell(f"{chain.store_absent:,}", number=True),
        TableCell(chain.head[:_HEAD_DIGITS] or ABSENT, number=True),
    ]


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


def _how() -> Panel:
    words = (
        "Each party exports its own transcript. It holds signatures, hashes and random ids of "
        "reports: no host's numbers, and no host's name."
    )
    rows = [[TableCell(who), TableCell(command)] for who, command in _STEPS]
    heads = (("Who", False), ("Command", False))
    return Panel("how", "How to make them", words, heads=heads, rows=rows, unfolded=True)
