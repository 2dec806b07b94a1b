"""The enumerations that parameters of matrix products name; loaded at their first use."""

from __future__ import annotations

from typing import ClassVar

from fuser_direct.enums import NativeEnum


class MatmulTilingStrategy(NativeEnum):
    """How the tiles of a matrix product are dealt to blocks."""

    one_tile_per_cta: ClassVar[MatmulTilingStrategy]
    distribute_tiles_across_sms: ClassVar[MatmulTilingStrategy]
    distribute_stages_across_sms: ClassVar[MatmulTilingStrategy]


class MatmulBufferingLoopLevel(NativeEnum):
    """The loop of a matrix product that is buffered."""

    cta_tiles: ClassVar[MatmulBufferingLoopLevel]
    warp_tiles: ClassVar[MatmulBufferingLoopLevel]


class MatmulCircularBufferingStrategy(NativeEnum):
    """Who fills the buffers of a matrix product."""

    pipelined: ClassVar[MatmulCircularBufferingStrategy]
    warp_specialized: ClassVar[MatmulCircularBufferingStrategy]


class MatmulTileRasterizationOrder(NativeEnum):
    """The order in which the tiles of a matrix product are visited."""

    column_major: ClassVar[MatmulTileRasterizationOrder]
    row_major: ClassVar[MatmulTileRasterizationOrder]


class MmaMacroArch(NativeEnum):
    """The architecture of a matrix instruction."""

    no_mma: ClassVar[MmaMacroArch]
    volta: ClassVar[MmaMacroArch]
    turing: ClassVar[MmaMacroArch]
    ampere: ClassVar[MmaMacroArch]
    hopper: ClassVar[MmaMacroArch]
    blackwell_1cta: ClassVar[MmaMacroArch]
    blackwell_2cta: ClassVar[MmaMacroArch]
