"""Pages of HTML from what was drawn; everything that is not markup is escaped.

A report is one file to send round: style, script and icon stand in it, and it loads nothing.
"""

from __future__ import annotations

import gzip
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from .wording import kept_together

ASSETS: Final = {
    "page.css": "text/css; charset=utf-8",
    "page.js": "text/javascript; charset=utf-8",
    "theme.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}
"""Files that pages load, with their types."""


@dataclass(frozen=True, slots=True)
class TableCell:
    """A cell of a table; `number` is aligned right."""

    said: str | Markup
    number: bool = False
    unsure: bool = False


@dataclass(frozen=True, slots=True)
class Panel:
    """One view of a page: a heading, a sentence, a drawing, its numbers as a table.

    name      its anchor and its name in addresses
    words     what it shows, in a sentence or two
    note      what it does not say, or how it was made
    heads     of the table, with whether a column holds numbers
    files     what it can be loaded as: text and address
    unfolded  the table is what one looks at, not the drawing's numbers
    more      what is said below a table that was cut off
    action    a button: its text, and the address that it asks for
    query     what that address is asked with
    """

    name: str
    title: str
    words: str
    drawing: Markup | None = None
    note: str = ""
    heads: Sequence[tuple[str, bool]] = ()
    rows: Sequence[Sequence[TableCell]] = ()
    files: Sequence[tuple[str, str]] = ()
    unfolded: bool = False
    more: str = ""
    action: tuple[str, str] | None = None
    query: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True, slots=True)
class Notice:
    """What a reader must know before the numbers; kind: stale, empty, loading, error, simulated."""

    kind: str
    said: str


@dataclass(frozen=True, slots=True)
class Control:
    """A choice of what is shown; `days`: a date, from the first to the last that can be chosen."""

    name: str
    label: str
    options: Sequence[tuple[str, str]]
    chosen: str
    days: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Screen:
    """A whole page.

    links      title, address and whether it is this page
    hidden     what of the address no control shows, so that a choice keeps it
    status     what the page's foot says of the store
    live       it is asked for again every few seconds, and redrawn where it changed
    """

    title: str
    question: str
    links: Sequence[tuple[str, str, bool]] = ()
    panels: Sequence[Panel] = ()
    notices: Sequence[Notice] = ()
    controls: Sequence[Control] = ()
    hidden: Sequence[tuple[str, str]] = ()
    status: str = ""
    live: bool = False
    refresh_s: int | None = None


def rendered(screen: Screen) -> str:
    return str(template("page.html").render(screen=screen, asset=asset_address))


@cache
def asset(name: str) -> bytes:
    """Give a file that pages load; KeyError where it is none."""
    if name not in ASSETS:
        raise KeyError(name)
    return files(__package__).joinpath("assets", name).read_bytes()


@cache
def asset_packed(name: str) -> bytes:
    """Give it compressed by gzip, the same bytes every time."""
    return gzip.compress(asset(name), 9, mtime=0)


@cache
def asset_address(name: str) -> str:
    """Give its address, which changes with its content: it may be kept for ever."""
    return f"/static/{sha256(asset(name)).hexdigest()[:12]}/{name}"


@cache
def template(name: str) -> Any:
    """Give a template of this package; what is put into it is escaped."""
    environment = Environment(
        loader=PackageLoader(__package__), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters["kept_together"] = kept_together
    return environment.get_template(name)


@dataclass(frozen=True, slots=True)
class ReportPart:
    """One page's part: `name` is its anchor, and stands before those of its panels."""

    name: str
    title: str
    question: str
    panels: Sequence[Panel]


@dataclass(frozen=True, slots=True)
class PageReport:
    """What the file holds; `about` says of when it is, `status` what it is made of."""

    title: str
    about: str
    screens: Sequence[ReportPart]
    notices: Sequence[Notice] = ()
    status: str = ""


def rendered_report(report: PageReport) -> str:
    """Give the HTML of a report; a browser runs its very script, and loads nothing."""
    style, script = (Markup(asset(name).decode()) for name in ("page.css", "page.js"))  # noqa: S704
    policy = (
        f"default-src 'none'; script-src {_source_hash(script)}; style-src {_source_hash(style)}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    icon = f"data:image/svg+xml;base64,{b64encode(asset('icon.svg')).decode()}"
    return str(
        template("report.html").render(
            report=report, style=style, script=script, policy=policy, icon=icon
        )
    )


def _source_hash(content: Markup) -> str:
    return f"'sha256-{b64encode(sha256(content.encode()).digest()).decode()}'"


PAGE_HEADERS: Final[Mapping[str, str]] = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
}
