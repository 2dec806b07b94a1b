"""Launch extents that a manual schedule asks for: the extents of the loop axes that it binds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from fuser_direct.compiler.arguments import ArgInfo
from fuser_direct.compiler.bind import HostScalars
from fuser_direct.enums import ParallelType
from fuser_direct.errors import LaunchError
from fuser_direct.ir.fusion import Fusion
from fuser_direct.ir.values import IterDomain, Merge, Split, TensorView
from fuser_direct.schedulers.contract import LaunchConstraints

_BLOCK = (ParallelType.block_x, ParallelType.block_y, ParallelType.block_z)
_GRID = (ParallelType.grid_x, ParallelType.grid_y, ParallelType.grid_z)
# Limits of every CUDA device of compute capability 3.0 and later.
_MAX_THREADS = 1024
_LIMITS = dict(zip(_BLOCK + _GRID, (1024, 1024, 64, (1 << 31) - 1, 65535, 65535), strict=True))
_NAMES = {
    kind: f"{what}.{axis}"
    for kinds, what in ((_BLOCK, "blockDim"), (_GRID, "gridDim"))
    for kind, axis in zip(kinds, "xyz", strict=True)
}


@dataclass
class BoundAxes:
    """The largest extent that any tensor's loop axes give to each launch dimension."""

    extents: dict[ParallelType, int] = field(default_factory=dict)

    def check(self) -> None:
        """Raise LaunchError if no CUDA device can launch that."""
        for kind, extent in self.extents.items():
            if extent > _LIMITS[kind]:
                raise LaunchError(
                    f"manual schedule: {_NAMES[kind]} = {extent} exceeds the limit of "
                    f"{_LIMITS[kind]}; split the axes that are bound to {kind}"
                )
        threads = self.threads()
        if threads > _MAX_THREADS:
            raise LaunchError(
                f"manual schedule: {threads} threads a block exceed maxThreadsPerBlock, "
                f"{_MAX_THREADS} on every CUDA device; bind less to block_x, block_y and block_z"
            )

    def threads(self) -> int:
        """Threads of a block."""
        product = 1
        for kind in _BLOCK:
            product *= self.extents.get(kind, 1)
        return product

    def constraints(self) -> LaunchConstraints | None:
        """The block as launch constraints: its threads along x, as generated kernels have them;
        None if nothing is bound to it. The grid follows from the sizes.
        """
        if not any(kind in self.extents for kind in _BLOCK):
            return None
        return LaunchConstraints(block=(self.threads(), None, None))


def bound_axes(fusion: Fusion, args: Sequence[ArgInfo], shape_scalars: Sequence[int]) -> BoundAxes:
    """What the schedule recorded on a fusion's tensors asks for in one call."""
    scalars = HostScalars(fusion, args, shape_scalars)
    found = BoundAxes()
    for val in fusion.vals():
        if not isinstance(val, TensorView):
            continue
        for axis in val.get_loop_domain():
            if axis.parallel in _LIMITS:
                known = found.extents.get(axis.parallel, 1)
                found.extents[axis.parallel] = max(known, _extent(axis, scalars))
    return found


def _extent(axis: IterDomain, scalars: HostScalars) -> int:
    """The extent of a loop axis in one call."""
    expr = axis.definition()
    if isinstance(expr, Merge):
        return _extent(expr.outer(), scalars) * _extent(expr.inner(), scalars)
    if isinstance(expr, Split):
        factor: int = expr.attr("factor")
        if (axis is expr.inner()) == expr.attr("inner_split"):
            return factor
        source = expr.ins[0]
        assert isinstance(source, IterDomain)
        return -(-_extent(source, scalars) // factor)
    if axis.twin is not None:
        return _extent(axis.twin, scalars)
    return scalars.integer(axis.extent())
