"""The sampler audit at length: `make bench-audit`.

The true mechanism must pass a two-sided trade-off test over ten million trials, from a seeded
stream and from the operating system's generator; every planted bug must be caught. Each step is
kept in bench/.cache/audit, so that a run cut off goes on; a change of the audited code begins anew.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Final

import numpy as np

from bench.audit_evidence import Evidence, measured_mu
from bench.audit_mechanism import PLANTED, TRUE, Mechanism, from_system
from bench.record import CACHE, ROOT, Figure, write_result

CHUNK: Final = 200_000
SEED: Final = 20_251_121
TRUE_ONES: Final = (
    replace(TRUE, name="table sampler, seeded"),
    replace(TRUE, name="live agent's sampler", sampler=from_system),
)


def main() -> int:
    """Run the audit; 0 when the true mechanism passes and every planted bug is caught."""
    parser = argparse.ArgumentParser(description="Audit the noise by trials and planted bugs.")
    parser.add_argument("--trials", type=int, default=10_000_000, help="of the true mechanism")
    trials = parser.parse_args().trials
    folder = CACHE / "audit" / _sources_hash()
    folder.mkdir(parents=True, exist_ok=True)
    passed = [_examine(folder, mechanism, trials) == () for mechanism in TRUE_ONES]
    caught = [_examine(folder, bug, min(bug.few or trials, trials)) != () for bug in PLANTED]
    print(f"{sum(passed)} of {len(passed)} true mechanisms pass, "
          f"{sum(caught)} of {len(caught)} planted bugs caught")  # fmt: skip
    if not all(passed):
        return 1
    path = write_result(
        "audit",
        "make bench-audit",
        [
            Figure("audit_planted_bugs_caught", sum(caught), "bugs", goal=len(PLANTED)),
            Figure("audit_planted_bugs", len(PLANTED), "bugs"),
            Figure("audit_trials", trials, "trials of each true mechanism", goal=10_000_000),
        ],
    )
    print(path.relative_to(ROOT))
    return 0 if all(caught) else 1


def _examine(folder: Path, mechanism: Mechanism, trials: int) -> tuple[str, ...]:
    evidence = _gather(folder, mechanism, trials)
    reasons = evidence.verdict()
    said = reasons[0] if reasons else "nothing found"
    print(
        f"{mechanism.name:<42}{evidence.trials:>11,}  mu {measured_mu(evidence):6.4f}  {said}",
        flush=True,
    )
    return reasons


def _gather(folder: Path, mechanism: Mechanism, trials: int) -> Evidence:
    path = folder / (sha256(mechanism.name.encode()).hexdigest()[:16] + ".npz")
    evidence = _load(path)
    while evidence.trials < trials:
        part = min(CHUNK, trials - evidence.trials)
        evidence.merge(Evidence().add(mechanism, part, SEED + evidence.trials))
        _store(path, evidence)
    return evidence


def _load(path: Path) -> Evidence:
    if not path.exists():
        return Evidence()
    with np.load(path, allow_pickle=False) as kept:
        return Evidence(
            int(kept["trials"]),
            kept["curve"],
            kept["noise"],
            kept["products"],
            kept["probe_sums"],
            {str(fault) for fault in kept["faults"]},
        )


def _store(path: Path, evidence: Evidence) -> None:
    partial = path.with_suffix(".partial.npz")
    np.savez(
        partial,
        trials=evidence.trials,
        curve=evidence.curve,
        noise=evidence.noise,
        products=evidence.products,
        probe_sums=evidence.probe_sums,
        faults=np.array(sorted(evidence.faults), dtype=np.str_),
    )
    partial.replace(path)


def _sources_hash() -> str:
    digest = sha256()
    for path in sorted([*(ROOT / "privacy").glob("*.py"), *(ROOT / "bench").glob("audit*.py")]):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


if __name__ == "__main__":
    sys.exit(main())
