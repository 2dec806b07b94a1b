"""Kernel IR -> LLVM IR text: the CPU half of code generation.

Every kernel is explicit vector code along its innermost axis, several registers a value, so that
LLVM needs no IR pass over it.
"""

from __future__ import annotations

from fuser_direct.codegen.llvm_column import ColumnEmitter
from fuser_direct.codegen.llvm_inner_outer import InnerOuterEmitter
from fuser_direct.codegen.llvm_pointwise import PointwiseEmitter
from fuser_direct.codegen.llvm_row import RowEmitter
from fuser_direct.codegen.llvm_tiled import TiledEmitter
from fuser_direct.codegen.llvm_turned_column import TurnedColumnEmitter
from fuser_direct.codegen.llvm_types import CpuTarget
from fuser_direct.ir.kernel import Kernel
from fuser_direct.schedulers.schedule import (
    CpuInnerOuter,
    CpuPointwise,
    CpuRow,
    CpuSchedule,
    CpuTiled,
)


def emit(kernel: Kernel, schedule: CpuSchedule, target: CpuTarget) -> str:
    """The module's text; a pure function of its arguments.

    The function is named `kernel.name` and has the CPU launch signature of docs/architecture.md. It
    reads and writes only elements that the launch arguments span, at any alignment of an element or
    more.
    Raises: UnsupportedError naming an op that has no LLVM builder.
    """
    if isinstance(schedule, CpuPointwise):
        return PointwiseEmitter(kernel, schedule, target).text()
    if isinstance(schedule, CpuTiled):
        return TiledEmitter(kernel, schedule, target).text()
    if isinstance(schedule, CpuRow):
        return RowEmitter(kernel, schedule, target).text()
    if isinstance(schedule, CpuInnerOuter):
        return InnerOuterEmitter(kernel, schedule, target).text()
    if schedule.rows:
        return TurnedColumnEmitter(kernel, schedule, target).text()
    return ColumnEmitter(kernel, schedule, target).text()
