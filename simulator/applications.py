"""What runs on the simulated fleet: recorded kernels, and variants that say that they are.

A variant is a recording at another size, by rules chosen from how the kernels work, none measured
(docs/simulator-model.md). A result that rests on a variant names it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from edge_agent.windows.window_state import COPY_FAMILIES
from transport.settings.config import limited, read_tree
from wire.catalogue import Catalogue

FORMAT: Final = 1
MAX_KERNELS: Final = 512
_MOST: Final = (1 << 53) - 1


class WorkloadError(ValueError):
    """A workload table breaks a rule: names the file, the entry, what was expected and came."""


@dataclass(frozen=True, slots=True)
class KernelRow:
    """One kernel of a workload, or what is left of a family ("(everything else)").

    duration_ns   10th, 50th, 90th and 99th percentile of its launches
    copy_bytes    median bytes of a copy, 0 for all else
    """

    name: str
    family: str
    launches_per_1000_steps: int = limited(low=0, high=_MOST)
    time_ns_per_step: int = limited(low=0, high=_MOST)
    duration_ns: tuple[int, int, int, int] = limited(fewest=4, most=4)
    copy_bytes: int = limited(0, low=0)

    def __post_init__(self) -> None:
        places = self.duration_ns
        if list(places) != sorted(places) or places[0] < 0:
            raise ValueError(f"duration_ns: expected times that do not fall, got {places}")


@dataclass(frozen=True, slots=True)
class Workload:
    """One program on one GPU model.

    steps             that were recorded
    step_ns           wall time of a step
    busy_millionths   share of a step in which the GPU was busy
    source, licence   where the trace was published
    """

    name: str
    application: str
    gpu_model: str
    source: str
    source_file: str
    licence: str
    steps: int
    step_ns: int = limited(low=1, high=_MOST)
    busy_millionths: int = limited(low=0, high=1_000_000)
    kernels: tuple[KernelRow, ...] = limited(key="kernel", fewest=1, most=MAX_KERNELS)

    def __post_init__(self) -> None:
        if not any(row.time_ns_per_step for row in self.kernels):
            raise ValueError("kernel: expected some GPU time, got none")


def shipped_folder() -> Path:
    return Path(__file__).with_name("workloads")


def load_workloads(folder: Path | None = None) -> tuple[Workload, ...]:
    """Read every table of a folder (None: the shipped one), by file name. Raises WorkloadError."""
    folder = folder or shipped_folder()
    paths = sorted(folder.glob("*.toml"))
    if not paths:
        raise WorkloadError(f"expected workload tables (*.toml) in {folder}, found none")
    return tuple(load_workload(path) for path in paths)


def load_workload(path: Path) -> Workload:
    return read_tree(Workload, path, error=WorkloadError, file_format=FORMAT)


def check_classes(
    workloads: Collection[Workload],
    families: Collection[str],
    applications: Collection[str],
    gpu_models: Collection[str],
) -> None:
    """Raise WorkloadError when a table names a class that the catalogue does not have."""
    for workload in workloads:
        wanted = [("application", workload.application, applications)]
        wanted.append(("GPU model", workload.gpu_model, gpu_models))
        wanted += [("family", row.family, families) for row in workload.kernels]
        for what, name, known in wanted:
            if name not in known:
                raise WorkloadError(
                    f"workload {workload.name}: a {what} of the catalogue expected, got {name}"
                )


_COMPUTE: Final = frozenset({"gemm", "attention", "conv", "moe"})
_QUADRATIC: Final = frozenset({"attention", "softmax"})
_FIXED: Final = frozenset({"communication", "optimizer"})
_BATCH_EXPONENT: Final = 0.8
_BACKWARD: Final = {True: 3.0, False: 2.5}
_OPTIMIZER_SHARE: Final = 0.06
_EXCHANGE_SHARE: Final = 0.15
_EMBEDDING_SHARE: Final = 0.04
_HEAD_SHARE: Final = 0.08

# Dense 16-bit Tflop/s and memory GB/s, from the makers' data sheets (SXM parts where there are).
_DEVICES: Final = {
    "V100": (125, 900),
    "A100": (312, 2039),
    "H100": (989, 3350),
    "H200": (989, 4800),
    "B200": (2250, 8000),
    "MI300X": (1307, 5300),
    "L40S": (362, 864),
}

MOST: Final = 250
_SIZES: Final = tuple(product((1.0, 4.0, 16.0, 0.25, 2.0), (1.0, 2.0, 0.5), (False, True)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """How a variant differs from its recording.

    batch, sequence   factors on the recorded batch and sequence length
    training          forward pass recorded, backward pass and optimiser added
    exchange          gradients or activations are exchanged between hosts: communication added
    stage             "first" or "last" stage of a pipeline: tables of embeddings, or the head
    host_gap          factor on the time in which the GPU waits for its host
    gpu_model         "" is the recorded one
    """

    batch: float = 1.0
    sequence: float = 1.0
    training: bool = False
    exchange: bool = False
    stage: str = limited("", choices=("", "first", "last"))
    host_gap: float = 1.0
    gpu_model: str = ""


def model_factor(family: str, recorded: str, model: str) -> float:
    """How much longer a kernel takes on another GPU model; 1 without a data sheet of it here."""
    if recorded == model or recorded not in _DEVICES or model not in _DEVICES:
        return 1.0
    place = 0 if family in _COMPUTE else 1
    return _DEVICES[recorded][place] / _DEVICES[model][place]


def derive(recording: Workload, variant: Variant, name: str, application: str) -> Workload:
    """Apply a variant's rules to a recorded table, and give it a name and a class."""
    model = variant.gpu_model or recording.gpu_model
    rows = [_row(row, variant, recording.gpu_model, model) for row in recording.kernels]
    rows += _added(rows, variant)
    before = sum(row.time_ns_per_step for row in recording.kernels)
    after = sum(row.time_ns_per_step for row in rows)
    busy_ns = recording.step_ns * recording.busy_millionths / 1e6
    gap_ns = (recording.step_ns - busy_ns) * variant.host_gap
    busy_ns *= after / before  # streams overlap as they did
    step_ns = max(round(busy_ns + gap_ns), 1)
    return replace(
        recording,
        name=name,
        application=application,
        gpu_model=model,
        step_ns=step_ns,
        busy_millionths=min(round(busy_ns / step_ns * 1e6), 1_000_000),
        kernels=tuple(rows),
    )


def _row(row: KernelRow, variant: Variant, recorded: str, model: str) -> KernelRow:
    longer = model_factor(row.family, recorded, model)
    more = 1.0
    copied = row.copy_bytes
    if row.family not in _FIXED:
        longer *= variant.batch**_BATCH_EXPONENT
        longer *= variant.sequence ** (2 if row.family in _QUADRATIC else 1)
        copied = round(copied * variant.batch * variant.sequence)
        if variant.training and row.family not in COPY_FAMILIES:
            more = _BACKWARD[row.family in _COMPUTE]
    p10, p50, p90, p99 = (round(place * longer) for place in row.duration_ns)
    return replace(
        row,
        launches_per_1000_steps=round(row.launches_per_1000_steps * more),
        time_ns_per_step=round(row.time_ns_per_step * longer * more),
        duration_ns=(p10, p50, p90, p99),
        copy_bytes=copied,
    )


def _added(rows: list[KernelRow], variant: Variant) -> list[KernelRow]:
    """Kernels that the recording has none of, as shares of the time of those it has."""
    wanted = [
        ("optimizer", _OPTIMIZER_SHARE if variant.training else 0.0, 40_000),
        ("communication", _EXCHANGE_SHARE if variant.exchange else 0.0, 400_000),
        ("embedding", _EMBEDDING_SHARE if variant.stage == "first" else 0.0, 60_000),
        ("gemm", _HEAD_SHARE if variant.stage == "last" else 0.0, 900_000),
        ("softmax", _HEAD_SHARE / 2 if variant.stage == "last" else 0.0, 200_000),
    ]
    whole = sum(row.time_ns_per_step for row in rows)
    return [_by_rule(family, round(share * whole), typical) for family, share, typical in wanted
            if share]  # fmt: skip


def _by_rule(family: str, time_ns: int, typical_ns: int) -> KernelRow:
    places = (typical_ns // 2, typical_ns, 2 * typical_ns, 4 * typical_ns)
    launches = max(round(1000 * time_ns / typical_ns), 1)
    return KernelRow(f"(added by rule: {family})", family, launches, time_ns, places, 0)


VARIANTS: Final = Path(__file__).with_name("variants.toml")


@dataclass(frozen=True, slots=True)
class Application:
    """One table of kernel activity that hosts may run.

    group        what a scenario calls it: ranks and stages of one program share a group
    workload     the table; its `application` is the class that a report counts it under
    recording    the recorded table it is or comes from
    """

    name: str
    group: str
    workload: Workload
    recording: str
    variant: Variant | None = None

    @property
    def is_recording(self) -> bool:
        return self.variant is None


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantRow(Variant):
    """A variant as the file has it; stands_for: why it is taken for its class."""

    name: str
    application: str
    recording: str
    stands_for: str


@dataclass(frozen=True, slots=True)
class VariantTable:
    rows: tuple[VariantRow, ...] = limited(key="variant")


@cache
def load_applications() -> tuple[Application, ...]:
    """Every recording by file name, then every variant in order. Raises WorkloadError."""
    recordings = {workload.name: workload for workload in load_workloads()}
    table = read_tree(VariantTable, VARIANTS, error=WorkloadError)
    recorded = [Application(w.name, w.application, w, w.name) for w in recordings.values()]
    return (*recorded, *(_variant(row, recordings) for row in table.rows))


def class_places(applications: Iterable[Application], catalogue: Catalogue) -> NDArray[np.int64]:
    """Give int64[applications]: the place of each one's class, the same in every section."""
    cells = catalogue.section("applications_seen").cells
    return np.array([cells.index(each.workload.application) for each in applications])


def _variant(row: VariantRow, recordings: Mapping[str, Workload]) -> Application:
    if row.recording not in recordings:
        raise WorkloadError(
            f"{VARIANTS.name}: variant[{row.name}].recording: expected one of "
            f"{', '.join(recordings)}, got {row.recording!r}"
        )
    workload = derive(recordings[row.recording], row, row.name, row.application)
    return Application(row.name, row.application, workload, row.recording, row)


def numbered_applications(catalogue: Catalogue, count: int) -> tuple[Application, ...]:
    """Make 1 .. 250 applications, each under a place of its own of the catalogue's table.

    All are filed under a class that is not theirs, so all say that they are variants. Raises
    ValueError.
    """
    places = catalogue.section("applications_seen").cells
    if not 1 <= count <= min(MOST, len(places) - 1):
        raise ValueError(f"expected 1 to {MOST} applications, got {count}")
    recordings = load_workloads()
    made = []
    for number in range(count):
        recording = recordings[number % len(recordings)]
        batch, sequence, training = _SIZES[number // len(recordings) % len(_SIZES)]
        variant = Variant(batch=batch, sequence=sequence, training=training)
        name = f"application_{number + 1:03}"
        workload = derive(recording, variant, name, places[number + 1])
        made.append(Application(name, name, workload, recording.name, variant))
    return tuple(made)
