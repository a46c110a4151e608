"""Who learns what of a host, in plain words: what docs/threat-model.md says, as a test holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class PartyWords:
    """One party; `rows` of the table of docs/threat-model.md or its headings."""

    who: str
    learns: str
    hidden: str
    worst: str
    rows: tuple[str, ...]


THREATS: Final = (
    PartyWords(
        "A reader of releases, and of these pages",
        "Sums over many hosts, with noise in them, and how large the noise is.",
        "What any one host measured. All releases of a week together say no more about it than "
        "the budget above.",
        "Combine years of releases: what they say of one host adds up from week to week. Asking "
        "more often adds nothing.",
        ("Reader of releases", "Viewer of the web application", "The unit"),
    ),
    PartyWords(
        "The Leader, which adds the reports up",
        "Which hosts report, when and how often; their numbers under a mask; then the noisy sum.",
        "The numbers of any host: it never has the masks of single hosts.",
        "Publish a false number, leave hosts out, release nothing. It gets no second sum of a "
        "window: the Helper answers once. Hosts that it makes up need an operator that signs for "
        "them, and the noise allows for some.",
        ("Leader", "Leader with up to t hosts"),
    ),
    PartyWords(
        "The Helper, which knows the masks",
        "Which hosts report and when, their masks, and the released sum.",
        "The numbers of any host: it never sees a report, masked or not.",
        "Refuse, so that nothing is released; or falsify a sum, as far as honest hosts could have "
        "sent it: numbers are wrong then, and no host is exposed. Run twice or restored from a "
        "copy it could answer twice, unless a witness outside its machine tells it not to.",
        ("Helper", "Helper with the broker", "Helper, restored from a backup or run twice"),
    ),
    PartyWords(
        "Leader and Helper together",
        "Each host's own numbers, with no more than that host's small part of the noise.",
        "Nothing that is of use: this is no meaningful protection.",
        "Work together, and nothing here would show it. So the two must be run by parties with "
        "interests of their own.",
        ("**Leader with Helper**", "If Leader and Helper collude"),
    ),
    PartyWords(
        "The log, which carries the reports",
        "Which host sends when, and some of its clock and of when its agent started.",
        "What is in the reports: they are encrypted to the Leader, and all have one length.",
        "Drop, delay, copy or forge reports. A dropped one is an absent host, a copy counts once, "
        "a forged one is refused.",
        ("Broker",),
    ),
    PartyWords(
        "The network between Leader and Helper",
        "That they talk, when, and how much: how many hosts a window has.",
        "What they say: it is encrypted, and signed besides.",
        "Cut them off from each other: then nothing is released.",
        ("Network between Leader and Helper",),
    ),
    PartyWords(
        "Another operator in the fleet",
        "Its own hosts' numbers and noise, and the releases that everybody sees.",
        "Other operators' hosts: the noise of the others is enough without its own, as long as it "
        "has no more hosts than the plan allows for.",
        "Have its hosts lie. Released numbers can be wrong then, within what honest hosts could "
        "have sent; beyond that the window is kept back.",
        ("Operator of many hosts", "A host"),
    ),
    PartyWords(
        "What you trust, as the owner of a host",
        "Whoever is root on your host sees all of it; that it takes part, and when, is no secret.",
        "Whether Leader and Helper keep apart: no software can tell you.",
        "Trust the agent on your host to add its noise and to stay within its budget, the two "
        "parties not to work together, and the roster to hold few made-up hosts.",
        ("Root on a host", "What is not protected"),
    ),
)

THREATS_IN_SHORT: Final = (
    "Nobody outside a host learns what it measured, as long as Leader and Helper do not work "
    "together and no party has more than a few of the fleet's hosts in its hands. That a host "
    "takes part, and when it reports, is not hidden from them."
)
