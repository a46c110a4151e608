"""What a party does next, in order: what it runs, what it hands to whom, what it must check."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pointillist.plan_file import load_plan

from .party_card import FleetParty, PartyCard, card_fingerprint
from .party_config_text import shell_line
from .party_setup import PLAN, PartyFolder


@dataclass(frozen=True, slots=True)
class NextStep:
    """One thing to do: a command, or something that people do; and what it needs of a person.

    check   what nobody but a person can make sure of; "" where there is nothing
    """

    do: str
    check: str = ""


def next_steps(folder: PartyFolder) -> list[NextStep]:
    """Give what a party does next.

    Raises      CardRefused
    """
    own = folder.card()
    missing = list(_cards_missing(folder, own))
    if missing:
        return [_hand_over(folder, own), *missing]
    steps = {
        FleetParty.LEADER: _leader_steps,
        FleetParty.HELPER: _helper_steps,
        FleetParty.OPERATOR: _operator_steps,
    }
    return list(steps[FleetParty(own.party)](folder))


def _hand_over(folder: PartyFolder, own: PartyCard) -> NextStep:
    content = folder.own_card.read_bytes()
    to = {
        FleetParty.LEADER: "the Helper's company and every operator",
        FleetParty.HELPER: "the Leader's company and every operator",
        FleetParty.OPERATOR: "the Leader's company and, not through it, the Helper's",
    }[FleetParty(own.party)]
    return NextStep(
        f"send {folder.own_card} to {to}",
        f"tell them its fingerprint by another way: {card_fingerprint(content)}",
    )


def _cards_missing(folder: PartyFolder, own: PartyCard) -> Iterator[NextStep]:
    wanted = [p for p in (FleetParty.LEADER, FleetParty.HELPER) if p != own.party]
    if own.party != FleetParty.OPERATOR:
        wanted.append(FleetParty.OPERATOR)
    for party in wanted:
        if not folder.taken(party):
            words = ("pointillist", "fleet", "pair", str(folder.base), f"{party.upper()}-CARD")
            yield NextStep(
                f"{shell_line(words)} --fingerprint ...",
                f"its fingerprint comes from the {party}'s own people, by another way than the card"
                + (", and not through the Leader" if _by_itself(own, party) else ""),
            )


def _by_itself(own: PartyCard, party: FleetParty) -> bool:
    """Whether a Leader in between could make hosts up."""
    return own.party == FleetParty.HELPER and party is FleetParty.OPERATOR


def _command(*words: str) -> str:
    return shell_line(("pointillist", *words))


def _leader_steps(folder: PartyFolder) -> Iterator[NextStep]:
    home, own = folder.home("leader"), folder.card()
    helper = folder.taken(FleetParty.HELPER)[0]
    plan, key = str(home / "plan.toml"), str(home / "keys" / "leader" / "identity.key")
    config = str(home / "leader.toml")
    yield NextStep(
        _command("plan", "--plan", plan),
        "hosts, n_min, t above the largest operator, and the errors",
    )
    for task in load_plan(home / "plan.toml").tasks:
        file = str(home / f"{task.series}.task")
        yield NextStep(
            _command(
                "task", "build", "--plan", plan, "--series", task.series, "--leader",
                own.public_key.hex(), "--helper", helper.public_key.hex(), "--out", file,
            )
        )  # fmt: skip
    yield NextStep(_command("task", "sign", f"{home}/*.task", "--key", key))
    yield NextStep(
        f"send {home}/*.task to {helper.name}; put what comes back into {home / 'signed'}",
        "it comes back with both signatures: `pointillist task verify`",
    )
    yield NextStep(
        _command("kafka", "topics", "--config", config),
        "the broker's administrator does this, with users and rights: docs/kafka.md",
    )
    yield NextStep(_command("leader", "doctor", "--config", config))
    yield NextStep(_command("leader", "run", "--config", config), "after the Helper runs")
    build = _command(
        "leader", "roster", "build", "--plans", str(home / "plans.toml"), "--requests",
        str(home / "joins"), "--log", config, "--key", key, "--now", "--out", f"{home}/1.roster",
    )  # fmt: skip
    yield NextStep(build, "once hosts have asked; --now is for the first roster alone")
    yield NextStep(
        f"send {home}/1.roster, 1.vouchers and joins/*.entry to {helper.name}; put what comes back "
        f"into {home / 'signed'}",
        "tell it how many hosts of whom are new: it signs that they exist",
    )


def _helper_steps(folder: PartyFolder) -> Iterator[NextStep]:
    home = folder.home("helper")
    config, signed = str(home / "helper.toml"), str(home / "signed")
    yield NextStep(_command("helper", "doctor", "--config", config))
    yield NextStep(
        _command("helper", "run", "--config", config), "its port open to the Leader alone"
    )
    yield NextStep(
        _command("task", "show", "RECEIVED.task"),
        "epsilon, windows, n_min, t and both parties' keys are what was agreed",
    )
    yield NextStep(
        _command("helper", "countersign", "RECEIVED.task", "--config", config),
        f"copy it into {signed}, and send it back",
    )
    yield NextStep(
        _command("helper", "countersign", "1.roster", "--first", "--config", config),
        "the counts of hosts are what the operators told you, not the Leader; --first once only",
    )
    yield NextStep(
        _command("helper", "countersign", "RECEIVED/", "--config", config),
        f"answers to hosts (*.entry); copy the roster into {signed}, and send all of it back",
    )


def _operator_steps(folder: PartyFolder) -> Iterator[NextStep]:
    home, own = folder.home("operator"), folder.card()
    leader = folder.taken(FleetParty.LEADER)[0]
    yield NextStep(
        _command(
            "operator", "vouch", "--hosts", "NAMES.txt", "--folder", str(home / "tokens"),
            "--key", str(home / f"{own.name}.key"), "--name", own.name, "--plan", PLAN,
            "--leader", leader.public_key.hex(),
        ),
        "each token goes to its host alone; tell the Helper how many you vouched for",
    )  # fmt: skip
    yield NextStep(
        f"copy {home / 'agent.toml'} to /etc/pointillist/agent.toml of each host",
        f"n_min_at_least = {leader.n_min:,} and the epsilon of [bounds] are what you agree to",
    )
    yield NextStep("on each host: " + _command("keys", "generate", "host", "--folder", "KEYS"))
    yield NextStep("on each host: " + _command("agent", "doctor"))
    yield NextStep("on each host: " + _command("agent", "join", "--token-file", "HOST.token"))
    yield NextStep("on each host: " + _command("agent", "run"), "`enrolled  yes` of `agent join`")
