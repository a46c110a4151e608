"""Pages in one file to send round: style, script and icon stand in it, and it loads nothing."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256

from markupsafe import Markup

from .layout import Notice, Panel, asset, template


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
    """Give the HTML of a whole report.

    Its policy lets a browser run this very script and style, and load nothing.
    """
    style, script = (_inlined(asset(name)) for name in ("page.css", "page.js"))
    policy = (
        f"default-src 'none'; script-src {_source(script)}; style-src {_source(style)}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    icon = f"data:image/svg+xml;base64,{b64encode(asset('icon.svg')).decode()}"
    return str(
        template("report.html").render(
            report=report, style=style, script=script, policy=policy, icon=icon
        )
    )


def _inlined(content: bytes) -> Markup:
    return Markup(content.decode())  # noqa: S704  (a file of this package)


def _source(content: Markup) -> str:
    return f"'sha256-{b64encode(sha256(content.encode()).digest()).decode()}'"
