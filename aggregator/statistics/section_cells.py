"""Which cells of a catalogue section are named, measured, and of one GPU model."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt

from aggregator.protocol.released import Capacity
from wire.catalogue import Section

UNMEASURED: Final = "unmeasured"
RESERVED: Final = "reserved_"
MODEL_AXIS: Final = "gpu_model"


@lru_cache(maxsize=256)
def model_groups(section: Section) -> tuple[str, ...]:
    """Group of each cell: its GPU model where the section is by model, else "" for all."""
    if section.axes[0] != MODEL_AXIS or len(section.axes) == 1:
        return ("",) * section.length
    return tuple(cell.split("/", 1)[0] for cell in section.cells)


@lru_cache(maxsize=256)
def group_members(section: Section) -> dict[str, npt.NDArray[np.bool_]]:
    """Give each group's cells, groups in their order."""
    groups = np.array(model_groups(section))
    return {group: groups == group for group in dict.fromkeys(model_groups(section))}


@lru_cache(maxsize=256)
def is_partition(section: Section) -> bool:
    """Whether the cells and what was not measured are all of the wall time."""
    return any(leaf_of(cell) == UNMEASURED for cell in section.cells)


@lru_cache(maxsize=256)
def named_cells(section: Section) -> npt.NDArray[np.intp]:
    """Places of the cells that are no places kept for later classes."""
    return np.array([i for i, cell in enumerate(section.cells) if not is_reserved(cell)])


@lru_cache(maxsize=256)
def measured_cells(section: Section) -> npt.NDArray[np.bool_]:
    """Which cells are named and measured."""
    return np.array([not is_reserved(c) and leaf_of(c) != UNMEASURED for c in section.cells])


def gpus_of(capacity: Capacity, section: Section, group: str) -> int:
    """Count the GPUs of a group of cells."""
    return capacity.gpus_by_model.get(model_of(section, group), 0) if group else capacity.gpus


def model_of(section: Section, group: str) -> int:
    """Index of a group's GPU model."""
    return list(group_members(section)).index(group)


@lru_cache(maxsize=256)
def reserved_cells(section: Section) -> tuple[int, ...]:
    """Indexes of the cells that are kept for later classes."""
    return tuple(i for i, cell in enumerate(section.cells) if is_reserved(cell))


def leaf_of(cell: str) -> str:
    """Last part of a cell's name."""
    return cell.rsplit("/", 1)[-1]


def is_reserved(cell: str) -> bool:
    """Whether a part of a cell's name is a place kept for a later class: zero, so all noise."""
    return any(part.startswith(RESERVED) for part in cell.split("/"))
