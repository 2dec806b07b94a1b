"""Parameter objects: defaults, attributes, equality, `hash()` and text."""

from __future__ import annotations

import pytest

from fuser_direct import (
    CircularBufferOptions,
    ClusterDims,
    DefinitionTypeError,
    GemmTile,
    HeuristicParams,
    LaunchParams,
    MatmulParams,
    MatMulTileOptions,
    MmaMacro,
    MmaMacroArch,
    MmaMacroEncode,
    ParallelType,
    PointwiseParams,
    ReductionParams,
    SchedulerType,
    SupportedVectorization,
)

CLASSES = (PointwiseParams, ReductionParams, MatmulParams)


def test_the_base_class_is_not_made_directly() -> None:
    with pytest.raises(DefinitionTypeError, match="No constructor defined"):
        HeuristicParams()


@pytest.mark.parametrize("kind", CLASSES)
def test_defaults_are_equal_and_hash_alike(kind: type[HeuristicParams]) -> None:
    assert kind() == kind()
    assert kind().hash() == kind().hash()
    assert kind() != object()


@pytest.mark.parametrize("kind", CLASSES)
def test_launch_parameters_take_part_in_equality(kind: type[HeuristicParams]) -> None:
    params = kind()
    params.lparams = LaunchParams(-1, -1, -1, 64, -1, -1)
    assert params != kind()
    assert params.hash() != kind().hash()


def test_pointwise_fields_and_text() -> None:
    params = PointwiseParams()
    assert params.scheduler_type is SchedulerType.pointwise
    assert (params.break_point, params.vectorization_factor, params.split_block) == (0, 1, False)
    params.vectorization_factor, params.tag = 4, "mine"
    assert params != PointwiseParams()
    assert str(params) == (
        "\n===== Pointwise Parameters ========\n"
        "Tag: mine Pointwise Characteristics:\n"
        " Gridx: 1 BlckY: 1 BlckX: 128\n"
        "vectorization_factor: 4\n"
        "unroll_factor_outer: 1\n"
        "unroll_factor_inner: 1\n"
        "====================================\n"
    )


def test_a_misspelled_field_is_refused_by_the_constructor() -> None:
    with pytest.raises(TypeError):
        PointwiseParams(vector=4)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({}, SchedulerType.reduction),
        ({"persistent_kernel": True, "fastest_dim": True}, SchedulerType.inner_persistent),
        ({"persistent_kernel": True}, SchedulerType.outer_persistent),
        (
            {"persistent_kernel": True, "combined_inner_outer": True},
            SchedulerType.inner_outer_persistent,
        ),
    ],
)
def test_reduction_scheduler_follows_from_its_fields(
    fields: dict[str, bool], kind: SchedulerType
) -> None:
    assert ReductionParams(**fields).scheduler_type is kind  # type: ignore[arg-type]


def test_reduction_defaults_of_each_type() -> None:
    params = ReductionParams()
    assert params.schedule_3d is False
    assert params.unroll_factor_top_of_vectorization == 1
    assert params.block_dim_inner_reduction_extra is ParallelType.serial
    assert "grid_dim_iter_dom: ParallelType.serial" in repr(params)


def test_matmul_parts_keep_their_values() -> None:
    params = MatmulParams()
    params.tile_sizes = MatMulTileOptions(GemmTile(128, 256, 64), GemmTile(64, 64, 64))
    params.cluster_dims = ClusterDims(2, 1)
    params.mma_macro = MmaMacroEncode(MmaMacroArch.hopper, 64, 128, 16).mma_macro()
    params.supported_vec_size = SupportedVectorization(8, 8, 4)
    assert params.scheduler_type is SchedulerType.matmul
    assert params.mma_macro == MmaMacro(MmaMacroArch.hopper, 64, 128, 16)
    assert params != MatmulParams()
    assert "GemmTile(m=128, n=256, k=64)" in repr(params)
    assert params.hash() != MatmulParams().hash()


def test_circular_buffer_options_take_write_before_read() -> None:
    options = CircularBufferOptions(True, False, 3, 2)
    assert options.circular_buffer_smem_write is True
    assert options.circular_buffer_smem_read is False
    assert options.smem_circular_buffer_stage == 3
    assert options.smem_circular_buffer_prefetch_gap == 2


def test_gemm_tiles_compare_and_print() -> None:
    assert GemmTile(1, 2, 3) == GemmTile(1, 2, 3)
    assert GemmTile(1, 2, 3) != GemmTile(1, 2, 4)
    assert repr(GemmTile(1, 2, 3)) == "GemmTile(m=1, n=2, k=3)"
