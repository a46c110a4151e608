"""`pointillist signatures`: learn application classes from kernel mixes, and say how well."""

from __future__ import annotations

import textwrap
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from kernels.families import UNKNOWN_APPLICATION, FamilyRules
from kernels.kernel_mix import DECIDES, MixMeasure
from kernels.launches.kineto import TraceError
from kernels.signature_learning import Rate, SignatureEvaluation, jittered, read_profile, resampled
from kernels.signature_learning import evaluate as run
from kernels.signatures import Signature, SignatureError, Signatures, ranking
from pointillist.table import Column, cells_of, table_lines, terminal_columns
from wire.catalogue import Catalogue

from .output import ExitCode, JsonFlag, emit, examples, need_file, reported, usage_error

_EPILOG: Final = examples("""
pointillist signatures train chat.json.gz=llm_inference train.toml --out signatures.json
pointillist signatures evaluate   the packaged signatures, each asked about without its own job
pointillist signatures explain trace.json.gz   the class, and why not another""")

_SEED: Final = 20_261_121

app = typer.Typer(help="Application classes from kernel mixes.", no_args_is_help=True)

Profiles = Annotated[
    list[str],
    typer.Argument(
        metavar="PROFILE...",
        help="PyTorch traces, kernel tables (.toml) or `agent history --kind activity --json`; "
        "PATH=CLASS names the class where the file does not.",
    ),
]
File = Annotated[
    Path | None, typer.Option("--signatures", help="In place of the packaged signatures.")
]


@app.callback(epilog=_EPILOG)
def signatures() -> None:
    """Find the application class of a kernel mix among known profiles; `unknown` is an answer."""


@app.command(epilog=_EPILOG)
def train(
    profiles: Profiles,
    out: Annotated[Path, typer.Option(help="Where to write the signatures.")],
    json: JsonFlag = False,
) -> None:
    """Learn signatures from profiles, and write them to a file."""
    found = _read(profiles)
    nameless = [profile.name for profile in found if profile.application == UNKNOWN_APPLICATION]
    if nameless:
        named = ", ".join(nameless)
        raise usage_error(f"{named}: expected a class, got none", "PATH=CLASS names it")
    learned = Signatures.train(found)
    out.write_text(learned.text(), encoding="utf-8")
    answer = {
        "profiles": len(found),
        "classes": len({profile.application for profile in found}),
        "thresholds": {measure.value: limit for measure, limit in learned.thresholds.items()},
    }
    emit(answer, json)


@app.command(epilog=_EPILOG)
def evaluate(
    profiles: Annotated[
        list[str] | None, typer.Argument(metavar="[PROFILE...]", help="None: the packaged ones.")
    ] = None,
    file: File = None,
    json: JsonFlag = False,
) -> None:
    """Ask about each profile with what the others teach, and about classes never learned.

    A profile's own job, all of its ranks, is taken out first. Variants are made from the same
    profiles and say nothing about new programs.
    """
    known = _read(profiles) if profiles else list(_load(file).known)
    if len({profile.application for profile in known}) < 2:
        raise usage_error("expected profiles of at least 2 classes")
    found = {
        f"{measure.value}, by {by}": run(known, measure, by == "job")
        for measure in MixMeasure
        for by in ("job", "trace")
    }
    variants = {
        "500 launches": resampled(500, _SEED),
        "5,000 launches": resampled(5_000, _SEED),
        "shares x/ 1.35": jittered(0.3, _SEED),
        "shares x/ 1.8": jittered(0.6, _SEED),
    }
    for label, variant in variants.items():
        for measure in MixMeasure:
            found[f"{measure.value}, variant: {label}"] = run(known, measure, True, variant)
    emit(
        {name: _plain(result) for name, result in found.items()} if json else found,
        json,
        text=_table,
    )


@app.command(epilog=_EPILOG)
def explain(
    profile: Annotated[str, typer.Argument(metavar="PROFILE", help="As for train.")],
    file: File = None,
    json: JsonFlag = False,
) -> None:
    """Say which class a profile is of and why, and what sets it apart from others.

    Two answers are shown, by shares of launches and of GPU time; `decided_by` names the one that an
    agent takes.
    """
    loaded = _load(file)
    (measured,) = _read([profile])
    answer: dict[str, Any] = {}
    for measure in MixMeasure:
        mix = measured.mix(measure)
        if not mix.families:
            continue
        ranked = ranking(mix, loaded.known, loaded.operation_weight)
        nearest = ranked[0][1].mix(measure)
        names = sorted(
            mix.families.keys() | nearest.families.keys(),
            key=lambda name: -mix.families.get(name, 0) - nearest.families.get(name, 0),
        )
        match = loaded.nearest(mix)
        if measure is DECIDES:
            answer = {
                "application": match.application,
                "decided_by": measure.value,
                "because": match.because,
                **answer,
            }
        answer[measure.value] = {
            "application": match.application,
            "nearest": match.nearest,
            "distance": round(match.distance, 3),
            "threshold": round(match.threshold, 3),
            "margin": round(match.margin, 3),
            "runner_up": match.runner_up,
            "profiles": [
                {"profile": s.name, "application": s.application, "distance": round(far, 3)}
                for far, s in ranked[:5]
            ],
            "families": [
                {
                    "family": name,
                    "here_percent": round(100 * mix.families.get(name, 0), 2),
                    "nearest_percent": round(100 * nearest.families.get(name, 0), 2),
                }
                for name in names[:10]
            ],
        }
    if not answer:
        raise usage_error(f"{profile}: expected kernels other than copies, found none")
    emit(answer, json)


def _read(profiles: list[str]) -> list[Signature]:
    rules, classes = FamilyRules.load(), Catalogue.load().classes("application")
    found = []
    for named in profiles:
        path, _, application = named.partition("=")
        if application and application not in classes:
            raise usage_error(f"{named}: expected a class of the catalogue, got {application!r}")
        need_file(Path(path), "a profile", "a PyTorch trace, a kernel table or activity as JSON")
        with reported(ExitCode.USAGE, SignatureError, TraceError):
            found.append(read_profile(Path(path), rules, application or None))
    return found


def _load(path: Path | None) -> Signatures:
    if path is not None:
        need_file(path, "signatures", "`pointillist signatures train` writes them")
    with reported(ExitCode.USAGE, SignatureError):
        return Signatures.load(path, Catalogue.load().classes("application"))


def _plain(result: SignatureEvaluation) -> dict[str, Any]:
    rates = {
        "nearest": result.nearest,
        "answered": result.answered,
        "false_accepts": result.false_accepts,
    }
    return {
        **{
            name: {
                "hits": rate.hits,
                "trials": rate.trials,
                "low_percent": 100 * rate.interval[0],
                "high_percent": 100 * rate.interval[1],
            }
            for name, rate in rates.items()
        },
        "auroc": result.auroc,
        "accuracy_by_candidates": [list(pair) for pair in result.by_candidates],
    }


def _table(found: Any) -> str:
    width = terminal_columns()
    lines = table_lines(_COLUMNS, cells_of(_COLUMNS, found.items()), width)
    for name, result in found.items():
        if result.by_candidates and "variant" not in name:
            shares = "  ".join(f"{n}: {100 * share:.0f} %" for n, share in result.by_candidates)
            told = f"{name}: accuracy by number of classes to choose from: {shares}"
            lines += textwrap.wrap(told, width, subsequent_indent="  ")
    return "\n".join(lines)


def _rate(rate: Rate) -> str:
    low, high = rate.interval
    return f"{rate.hits}/{rate.trials} [{100 * low:.0f}, {100 * high:.0f}] %"


def _auroc(result: SignatureEvaluation) -> str:
    return "none" if result.auroc is None else f"{result.auroc:.3f}"


_COLUMNS: Final = (
    Column("asked", itemgetter(0), folds=True),
    Column("nearest right", lambda row: _rate(row[1].nearest)),
    Column("answered right", lambda row: _rate(row[1].answered)),
    Column("false accepts", lambda row: _rate(row[1].false_accepts)),
    Column("AUROC", lambda row: _auroc(row[1]), right=True),
)
