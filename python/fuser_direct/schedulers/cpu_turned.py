"""CPU kernels whose neighbours in memory don't lie along the lanes: transposes, and rows too short
to fill the lanes. Axes are put in the order that tiles need.
"""

from __future__ import annotations

from fuser_direct.dtypes import INFO
from fuser_direct.enums import SchedulerType
from fuser_direct.ir.kernel import GATHER, LOAD
from fuser_direct.lowering.canonical import Argument, Lowered
from fuser_direct.lowering.reorder import reordered
from fuser_direct.records import dataclass
from fuser_direct.schedulers.schedule import ROUNDED_TO, CpuColumn, CpuTiled
from fuser_direct.schedulers.vectorize import ceil_div, power_of_two_at_least, round_up

# Rows of fewer elements are turned, so that the lanes run across them.
_SHORT_ROW = 32
_SHORT_POINTWISE = 16
# Extents that are compiled into a kernel: rows that are taken apart by shuffles, or in blocks of
# fewer lanes than a register has. Longer ones share kernels.
_COMPILED_IN = 16
# Rows along the lanes are worth it from so many on.
_MIN_COLUMNS = 64
# Elements of a tile of a reduction: what the first-level cache holds of a few of them.
_TILE_ELEMS = 4096
# A tile of a transpose has at most so many rows, which are neighbours in memory: shorter runs waste
# most of what is fetched ahead (4096 x 4096 floats: 16 rows 23 ms, 64 12 ms, 512 8 ms). Fewer rows
# leave more columns, up to so many bytes of all turned buffers.
_TILE_BYTES = 32 << 10
_TILE_ROWS, _MOST_COLUMNS = 512, 512
# Columns that are as near as this in memory, several to a page, are fetched ahead whatever is read
# of them, and tiles of one block of rows (the least that is turned by shuffles) let their stores
# run on longer ([32, 3136, 64] floats turned: 64 rows 4.6 ms, 16 rows 3.5 ms).
_NEAR_BYTES, _FEW_ROWS = 1024, 16


@dataclass(frozen=True, slots=True)
class Turned:
    """A kernel with its axes in another order, and how its tiles are cut."""

    lowered: Lowered
    kind: SchedulerType
    schedule: CpuTiled | CpuColumn
    items: int
    rows: int
    columns: int


def turn(lowered: Lowered, streaming: tuple[bool, ...]) -> Turned | None:
    """The schedule by tiles, or None where neighbours lie along the innermost axis, or too few of
    them matter.
    """
    if len(lowered.extents) < 2 or 0 in lowered.extents:
        return None
    # Loads of computed places, or of some lanes only, go around the tiles.
    if any(n.op == GATHER or (n.op == LOAD and n.args) for n in lowered.kernel.nodes):
        return None
    if lowered.kernel.reduction_axes:
        return _short_rows(lowered, streaming)
    return _transposed(lowered, streaming)


def _short_rows(lowered: Lowered, streaming: tuple[bool, ...]) -> Turned | None:
    kernel = lowered.kernel
    if kernel.is_split or len(kernel.reduction_axes) != 1 or kernel.axes[-1] != "r":
        return None
    row = lowered.extents[-1]
    inner = len(lowered.extents) - 2
    columns = lowered.extents[inner]
    if row > _SHORT_ROW or columns < _MIN_COLUMNS:
        return None
    moved = reordered(lowered, [*range(inner), inner + 1, inner])
    short = row if row <= _COMPILED_IN else 0
    rows = short or round_up(row, ROUNDED_TO)
    block = _block(rows)
    is_staged = len(kernel.stages) > 1
    kind = SchedulerType.inner_persistent if is_staged else SchedulerType.reduction
    items = ceil_div(columns, block) * (lowered.rows // columns)
    schedule = CpuColumn(block, streaming, rows, short)
    return Turned(moved, kind, schedule, items, rows, block)


def _block(rows: int) -> int:
    """Columns of a tile with so many rows: a power of two."""
    fit = max(_TILE_ELEMS // rows, 64)
    return min(1 << (fit.bit_length() - 1), 512)


def _transposed(lowered: Lowered, streaming: tuple[bool, ...]) -> Turned | None:
    order = _pointwise_order(lowered)
    if order is None:
        return None
    moved = reordered(lowered, order)
    across, inner = moved.extents[-2:]
    short = across if across < _COMPILED_IN else 0
    most = _FEW_ROWS if _reads_near_columns(moved) else _TILE_ROWS
    rows = short or min(power_of_two_at_least(across), most)
    columns = _columns(moved, rows)
    outer = moved.rows // (across * inner)
    items = outer * ceil_div(across, rows) * ceil_div(inner, columns)
    schedule = CpuTiled(rows, columns, short, streaming)
    return Turned(moved, SchedulerType.pointwise, schedule, items, rows, columns)


def _turned_arguments(moved: Lowered) -> list[Argument]:
    return [a for a in moved.arguments if a.strides[-1] not in (0, 1) and a.strides[-2] != 0]


def _reads_near_columns(moved: Lowered) -> bool:
    """Whether all that is turned is read, from columns that lie near one another."""
    turned = _turned_arguments(moved)
    apart = (abs(a.strides[-1]) * INFO[a.operand.dtype].itemsize_bytes for a in turned)
    return not any(a.operand.is_output for a in turned) and max(apart, default=0) <= _NEAR_BYTES


def _columns(moved: Lowered, rows: int) -> int:
    """Columns of a tile of a transpose with so many rows: a power of two."""
    column = rows * sum(INFO[a.operand.dtype].itemsize_bytes for a in _turned_arguments(moved))
    fit = max(_TILE_BYTES // max(column, 1), _MIN_COLUMNS)
    return min(1 << (fit.bit_length() - 1), _MOST_COLUMNS)


def _pointwise_order(lowered: Lowered) -> list[int] | None:
    """Axes with the long one along the lanes last, and before it the one along which the buffers
    that are strided there have their neighbours.
    """
    extents, axes = lowered.extents, list(range(len(lowered.extents)))
    if extents[-1] < _SHORT_POINTWISE and extents[-2] >= _MIN_COLUMNS:
        return [*axes[:-2], axes[-1], axes[-2]]
    strided = [b for b, a in enumerate(lowered.arguments) if a.strides[-1] not in (0, 1)]
    if not strided:
        return None
    largest = max(strided, key=lowered.touched_elems)
    strides = lowered.arguments[largest].strides
    moving = [a for a in axes[:-1] if strides[a] != 0 and extents[a] > 1]
    if not moving:
        return None
    across = min(moving, key=lambda a: abs(strides[a]))
    return [*(a for a in axes[:-1] if a != across), across, axes[-1]]
