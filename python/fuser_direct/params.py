"""Parameter objects of the peer's schedulers: plain data with equality, `hash()` and printed form.

`schedule.compute_heuristics` fills the fields that describe what the fuser decided; the others keep
their defaults. Kernels are scheduled by `schedulers/`, which reads `lparams` and `cparams` only.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from typing import ClassVar

from fuser_direct._ext import CompileParams, LaunchParams
from fuser_direct.enums import ParallelType, SchedulerType
from fuser_direct.errors import DefinitionTypeError
from fuser_direct.matmul_enums import (
    MatmulBufferingLoopLevel,
    MatmulCircularBufferingStrategy,
    MatmulTileRasterizationOrder,
    MatmulTilingStrategy,
    MmaMacroArch,
)

_RULE = "=" * 36


@dataclass(eq=False, kw_only=True)
class HeuristicParams:
    """Base of the parameter objects; has launch and compile parameters and the scheduler's type.

    `==` compares everything but `cparams`. Not made directly.
    """

    scheduler_type: ClassVar[SchedulerType] = SchedulerType.none
    lparams: LaunchParams = field(default_factory=LaunchParams)
    cparams: CompileParams = field(default_factory=CompileParams)
    tag: str = ""

    def __post_init__(self) -> None:
        if type(self) is HeuristicParams:
            raise DefinitionTypeError(
                "HeuristicParams: No constructor defined! Make PointwiseParams, ReductionParams or "
                "MatmulParams instead"
            )

    def hash(self) -> int:
        """A number that is equal for equal parameters, in this process."""
        return hash((type(self).__name__, self.lparams, self._decisions()))

    def _decisions(self) -> tuple[object, ...]:
        common = {known.name for known in fields(HeuristicParams)}
        return tuple(getattr(self, f.name) for f in fields(self) if f.name not in common)

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return (self.lparams, self._decisions()) == (other.lparams, other._decisions())

    __hash__ = None  # type: ignore[assignment]

    def _lines(self) -> Iterable[str]:
        """The lines between the banner and the rule below."""
        common = {known.name for known in fields(HeuristicParams)}
        return [f"{f.name}: {getattr(self, f.name)}" for f in fields(self) if f.name not in common]

    def __repr__(self) -> str:
        kind = type(self).__name__.removesuffix("Params")
        head = f"\n===== {kind} Parameters ========\n"
        return head + "".join(f"{line}\n" for line in self._lines()) + f"{_RULE}\n"

    __str__ = __repr__


@dataclass(eq=False, repr=False)
class PointwiseParams(HeuristicParams):
    """Parameters of a pointwise kernel. Elements a thread: vectorization_factor times the unroll
    factors.
    """

    scheduler_type: ClassVar[SchedulerType] = SchedulerType.pointwise
    break_point: int = field(default=0, kw_only=True)
    split_block: bool = field(default=False, kw_only=True)
    split_grid_y_dim: bool = field(default=False, kw_only=True)
    flip_grid_binding: bool = field(default=False, kw_only=True)
    vectorization_factor: int = field(default=1, kw_only=True)
    unroll_factor_inner: int = field(default=1, kw_only=True)
    unroll_factor_outer: int = field(default=1, kw_only=True)

    def _lines(self) -> Iterable[str]:
        threads = 128 if "bdimx" in self.lparams.unset else self.lparams.bdimx
        yield f"Tag: {self.tag} Pointwise Characteristics:"
        yield f" Gridx: {self.lparams.gdimx} BlckY: {self.lparams.bdimy} BlckX: {threads}"
        if self.break_point:
            yield f"break_point: {self.break_point}"
        yield f"vectorization_factor: {self.vectorization_factor}"
        yield f"unroll_factor_outer: {self.unroll_factor_outer}"
        yield f"unroll_factor_inner: {self.unroll_factor_inner}"


@dataclass(eq=False, repr=False, kw_only=True)
class ReductionParams(HeuristicParams):
    """Parameters of a kernel that reduces; the scheduler's type follows from them."""

    fastest_dim: bool = False
    persistent_kernel: bool = False
    project_persistent_buffers: bool = False
    schedule_3d: bool = False
    flip_grid: bool = False
    cross_block_inner_reduction: bool = False
    cross_grid_inner_reduction: bool = False
    unroll_factor_inner_reduction: int = 1
    unroll_factor_top_of_vectorization: int = 1
    vectorize_inner_reduction: bool = False
    split_grid_dim_inner_reduction: bool = False
    pad_inner_reduction_to_warp: bool = False
    batches_per_block_inner_reduction: int = 1
    block_dim_inner_reduction: ParallelType = ParallelType.serial
    grid_dim_inner_reduction: ParallelType = ParallelType.serial
    multiple_reds_per_blk: bool = False
    unroll_factor_iter_dom: int = 1
    vectorize_iter_dom: bool = False
    split_grid_dim_iter_dom_inner: bool = False
    split_grid_dim_iter_dom_outer: bool = False
    block_dim_iter_dom: ParallelType = ParallelType.serial
    grid_dim_iter_dom: ParallelType = ParallelType.serial
    cross_block_outer_reduction: bool = False
    cross_grid_outer_reduction: bool = False
    batches_per_block_outer_reduction: int = 1
    unroll_factor_outer_reduction: int = 1
    block_dim_outer_reduction: ParallelType = ParallelType.serial
    grid_dim_outer_reduction: ParallelType = ParallelType.serial
    compute_persistent_buffer_with_first_consumer: bool = False
    static_bdimx: bool = False
    static_bdimy: bool = False
    combined_inner_outer: bool = False
    tidx_for_outer_reduction: bool = False
    pad_outer_reduction_to_warp: bool = False
    combined_split_grid_inner_dim: bool = False
    vectorization_factor_outer: int = 1
    vectorization_factor_tmp_gmem_write: int = 1
    block_dim_inner_reduction_extra: ParallelType = ParallelType.serial

    @property
    def scheduler_type(self) -> SchedulerType:  # type: ignore[override]
        """reduction, inner_persistent, outer_persistent or inner_outer_persistent."""
        if not self.persistent_kernel:
            return SchedulerType.reduction
        if self.combined_inner_outer:
            return SchedulerType.inner_outer_persistent
        return (
            SchedulerType.inner_persistent if self.fastest_dim else SchedulerType.outer_persistent
        )


@dataclass
class GemmTile:
    """Extents of a tile of a matrix product."""

    m: int
    n: int
    k: int

    def hash(self) -> int:
        """A number that is equal for equal tiles."""
        return hash((self.m, self.n, self.k))


@dataclass
class MatMulTileOptions:
    """Tiles of a block and of a warp."""

    cta_tile: GemmTile = field(default_factory=lambda: GemmTile(128, 128, 32))
    warp_tile: GemmTile = field(default_factory=lambda: GemmTile(64, 64, 32))


@dataclass
class CircularBufferOptions:
    """How operands of a matrix product are buffered in shared memory."""

    circular_buffer_smem_write: bool = False
    circular_buffer_smem_read: bool = False
    smem_circular_buffer_stage: int = 2
    smem_circular_buffer_prefetch_gap: int = 1


@dataclass
class SupportedVectorization:
    """Elements that move in one access: of operand a, of b, and in the epilogue."""

    a: int
    b: int
    epilogue: int


@dataclass
class ClusterDims:
    """Blocks of a cluster along m and n."""

    m: int = 1
    n: int = 1


@dataclass
class MmaMacro:
    """A matrix instruction: its architecture and extents."""

    arch: MmaMacroArch = MmaMacroArch.no_mma
    m: int = 0
    n: int = 0
    k: int = 0


@dataclass
class MmaMacroEncode:
    """The parts of a matrix instruction's name, to be put together by `mma_macro`."""

    arch: MmaMacroArch
    m: int
    n: int
    k: int

    def mma_macro(self) -> MmaMacro:
        """The instruction."""
        return MmaMacro(self.arch, self.m, self.n, self.k)


@dataclass(eq=False, repr=False, kw_only=True)
class MatmulParams(HeuristicParams):
    """Parameters of a matrix product. Products run in the framework's library here, which chooses
    its own.
    """

    scheduler_type: ClassVar[SchedulerType] = SchedulerType.matmul
    tile_sizes: MatMulTileOptions = field(default_factory=MatMulTileOptions)
    circular_buffer_options: CircularBufferOptions = field(default_factory=CircularBufferOptions)
    supported_vec_size: SupportedVectorization = field(
        default_factory=lambda: SupportedVectorization(1, 1, 1)
    )
    async_gmem_load_operands: bool = False
    grid_traversal_factor: tuple[int, int] = (1, 1)
    use_smem_epilogue: bool = False
    use_ldst_matrix: bool = True
    promote_prologue_smem_reuse: bool = False
    splitk_factor: int = 1
    tiling_strategy: MatmulTilingStrategy = MatmulTilingStrategy.one_tile_per_cta
    buffering_loop_level: MatmulBufferingLoopLevel = MatmulBufferingLoopLevel.cta_tiles
    circular_buffering_strategy: MatmulCircularBufferingStrategy = (
        MatmulCircularBufferingStrategy.pipelined
    )
    cta_order: MatmulTileRasterizationOrder = MatmulTileRasterizationOrder.row_major
    cluster_dims: ClusterDims = field(default_factory=ClusterDims)
    mma_macro: MmaMacro = field(default_factory=MmaMacro)

    def hash(self) -> int:
        """A number that is equal for equal parameters, in this process."""
        return hash((type(self).__name__, self.lparams, repr(self._decisions())))
