"""Answers by page and state: made once for each generation of the store, then handed out packed.

Each is made by one thread, and the rest wait for it; or nobody waits: what is asked for behind is
made by a thread of its own, for whoever asks next.
"""

from __future__ import annotations

import gzip
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from hashlib import sha256
from threading import Lock
from typing import Final, Generic, TypeVar

import pandas as pd
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from pages.layout import Panel, Screen, rendered

from .access_tokens import SeriesOwners, Viewer
from .page_shape import Page, View
from .store_reading import PageState, StoreReading
from .store_watch import FAILURES, StoreStanding, StoreState, StoreWatch, unreadable
from .view_panel import (
    FILE_KINDS,
    controls,
    links,
    notices,
    status_said,
    view_frame,
    view_panel,
)


@dataclass(frozen=True, slots=True)
class PackedAnswer:
    """Bytes of an answer, by gzip where that makes them fewer, and their tag."""

    body: bytes
    packed: bytes | None
    tag: str

    def weight(self) -> int:
        return len(self.body) + len(self.packed or b"")

    @staticmethod
    def of(body: bytes, *, pack: bool = True) -> PackedAnswer:
        tag = f'W/"{sha256(body).hexdigest()[:24]}"'
        return PackedAnswer(body, gzip.compress(body, 6, mtime=0) if pack else None, tag)


def answered(
    request: Request, packed: PackedAnswer, media_type: str, kept: str = "private, no-cache"
) -> Response:
    """Hand out packed bytes, or say that what is held is still right."""
    headers = {"etag": packed.tag, "cache-control": kept, "vary": "accept-encoding, authorization"}
    asked = request.headers.get("if-none-match", "")
    if packed.tag in [tag.strip() for tag in asked.split(",")]:
        return Response(status_code=304, headers=headers)
    if packed.packed is not None and "gzip" in request.headers.get("accept-encoding", ""):
        headers["content-encoding"] = "gzip"
        return Response(packed.packed, headers=headers, media_type=media_type)
    return Response(packed.body, headers=headers, media_type=media_type)


_T = TypeVar("_T")


class KeptValues(Generic[_T]):
    """Values by key; the least used are dropped beyond so many bytes, as `weigh` gives them."""

    def __init__(self, most: int, weigh: Callable[[_T], int]) -> None:
        self._most, self._weigh, self._bytes = most, weigh, 0
        self._lock = Lock()
        self._kept: OrderedDict[Hashable, _T] = OrderedDict()
        self._making: dict[Hashable, Lock] = {}

    def get(self, key: Hashable, make: Callable[[], _T]) -> _T:
        """Give the value of a key, making it where it is not kept; what `make` raises is raised."""
        if (kept := self.find(key)) is not None:
            return kept
        with self._lock:
            making = self._making.setdefault(key, Lock())
        try:
            with making:
                if (kept := self.find(key)) is not None:
                    return kept
                value = make()
                with self._lock:
                    self._kept[key] = value
                    self._bytes += self._weigh(value)
                    while self._bytes > self._most and len(self._kept) > 1:
                        self._bytes -= self._weigh(self._kept.popitem(last=False)[1])
                return value
        finally:
            with self._lock:
                self._making.pop(key, None)

    def find(self, key: Hashable) -> _T | None:
        """Give the value of a key, or None where it is not kept."""
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
            return self._kept.get(key)

    def drop(self, key: Hashable) -> None:
        with self._lock:
            if key in self._kept:
                self._bytes -= self._weigh(self._kept.pop(key))


class MadeBehind:
    """Has what is asked for made by one thread, in order; what waits is not asked for twice."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._asked: set[Hashable] = set()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="pages")

    def ask(self, key: Hashable, make: Callable[[], object]) -> None:
        """Have it made; what it raises is for whoever waits for it another time."""
        with self._lock:
            if key in self._asked:
                return
            self._asked.add(key)
        self._pool.submit(self._made, key, make)

    def close(self) -> None:
        """Wait for what is asked for, and make nothing more."""
        self._pool.shutdown()

    def _made(self, key: Hashable, make: Callable[[], object]) -> None:
        # What is asked for from here on may be newer than what is made now.
        with self._lock:
            self._asked.discard(key)
        make()


_MOST_BYTES: Final = 128 << 20
_MOST_SHOWN: Final = 10_000
_OLD_S: Final = 60.0
"""How long after a newer store was seen a page of an older one may still be handed out."""


def frame_bytes(frame: pd.DataFrame) -> int:
    """Bytes that a frame takes; names are shared, so they are not gone through."""
    return int(frame.memory_usage(deep=False).sum())


class StoreAway(HTTPException):
    """The store cannot be read now; the message says why, for whoever looks."""

    def __init__(self, why: str) -> None:
        super().__init__(503, why)


class PageAnswers:
    """Pages and views of one store, as each viewer may see them.

    behind   pages of an older store are handed out while the newest is drawn; else one waits
    """

    def __init__(
        self,
        watch: StoreWatch,
        owners: SeriesOwners,
        pages: Sequence[Page],
        *,
        behind: bool = False,
    ) -> None:
        self.watch = watch
        self.pages = pages
        self._owners = owners
        self._answers = KeptValues[PackedAnswer](_MOST_BYTES, PackedAnswer.weight)
        self._frames = KeptValues[pd.DataFrame](2 * _MOST_BYTES, frame_bytes)
        self._behind = MadeBehind() if behind else None
        self._drawn: dict[Hashable, StoreStanding] = {}

    def page(self, page: Page, state: PageState, viewer: Viewer) -> PackedAnswer:
        """Give the newest page as HTML, drawing it where it is not drawn yet."""
        standing = self.watch.standing()
        series = self.visible(standing, viewer)
        shown = (page.name, state, viewer.role, series)
        try:
            answer = self._answers.get(
                (shown, standing),
                lambda: PackedAnswer.of(self._html(page, state, viewer, standing, series)),
            )
        except FAILURES as error:
            broken = replace(standing, state=StoreState.BROKEN, detail=unreadable(error))
            return PackedAnswer.of(self._html(page, state, viewer, broken, series))
        self._note(shown, standing)
        return answer

    def ready_page(self, page: Page, state: PageState, viewer: Viewer) -> PackedAnswer | None:
        """Give a page that is drawn already, and wait for nothing; None where none may be shown.

        One of an older store is drawn anew behind, for whoever asks next.
        """
        standing = self.watch.standing()
        shown = (page.name, state, viewer.role, self.visible(standing, viewer))
        drawn = self._drawn.get(shown)
        if drawn is None:
            return None
        # Found first: what is drawn behind takes its place.
        answer = self._answers.find((shown, drawn))
        if answer is not None and drawn != standing:
            if self._behind is None or not self._may_follow(drawn, standing):
                return None
            self._behind.ask(shown, lambda: self.page(page, state, viewer))
        return answer

    def close(self) -> None:
        """Wait for what is drawn behind, and draw nothing more there."""
        if self._behind is not None:
            self._behind.close()
            self._behind = None

    def _may_follow(self, drawn: StoreStanding, standing: StoreStanding) -> bool:
        """Whether a page of an older store may be shown: for a while, and not over an error."""
        gone_s = self.watch.gone_s(drawn.generation)
        return (
            drawn.state is standing.state
            and gone_s is not None
            and time.monotonic() - gone_s < _OLD_S
        )

    def _note(self, shown: Hashable, standing: StoreStanding) -> None:
        """Note of which store a page is drawn; what was drawn before goes."""
        if len(self._drawn) > _MOST_SHOWN:
            self._drawn.clear()
        before = self._drawn.get(shown)
        self._drawn[shown] = standing
        if before is not None and before != standing:
            self._answers.drop((shown, before))

    def file(
        self, page: Page, view: View, state: PageState, viewer: Viewer, kind: str
    ) -> PackedAnswer:
        """Give a view as json, csv or parquet. Raises StoreAway."""
        standing = self.watch.standing()
        if standing.state in {StoreState.BROKEN, StoreState.LOADING}:
            raise StoreAway(standing.detail)
        series = self.visible(standing, viewer)
        key = (kind, page.name, view.name, state, series, standing.generation)

        def make() -> PackedAnswer:
            frame = view_frame(view, state, self._reading(standing, series))
            return PackedAnswer.of(FILE_KINDS[kind].write(page, view, frame))

        try:
            return self._answers.get(key, make)
        except FAILURES as error:
            raise StoreAway(unreadable(error)) from error

    def visible(self, standing: StoreStanding, viewer: Viewer) -> frozenset[str] | None:
        """Give the series that a viewer may see; None: all."""
        return self._owners.visible(viewer, standing.series)

    def panels(self, page: Page, state: PageState, viewer: Viewer) -> list[Panel]:
        """Give what is drawn of a page, for another frame. Raises one of FAILURES."""
        standing = self.watch.standing()
        reading = self._reading(standing, self.visible(standing, viewer))
        return [] if reading is None else [view_panel(page, v, state, reading) for v in page.views]

    def _reading(
        self, standing: StoreStanding, series: frozenset[str] | None
    ) -> StoreReading | None:
        """Give what can be read now; None where the store is not readable."""
        if not standing.readable:
            return None
        return StoreReading(self.watch.fleet(), series, standing, self._frames.get)

    def _html(
        self,
        page: Page,
        state: PageState,
        viewer: Viewer,
        standing: StoreStanding,
        series: frozenset[str] | None,
    ) -> bytes:
        reading = self._reading(standing, series)
        chosen = [] if reading is None else list(controls(page, state, reading))
        shown = {control.name for control in chosen}
        kept = list(state.written().items())
        screen = Screen(
            title=page.title,
            question=page.question,
            links=links(self.pages, viewer, state, page.name),
            panels=[
                replace(view_panel(page, v, state, reading), action=v.action, query=kept)
                for v in page.views
                if reading is not None
            ],
            notices=notices(standing),
            controls=chosen,
            hidden=[(name, value) for name, value in kept if name not in shown],
            status=status_said(standing),
            live=True,
            refresh_s=5 if standing.state is StoreState.LOADING else None,
        )
        return rendered(screen).encode()
