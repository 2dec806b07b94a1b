"""Names of the options that `execute` takes, as the peer defines them; each is accepted, unknown names are refused."""

from __future__ import annotations

from collections.abc import Iterable

from fuser_direct.errors import InputError

ENABLE_OPTIONS = frozenset(
    "cutlass_scheduler fuse_matmul fuse_multiple_matmuls id_model_extra_validation io_to_lower_precision kernel_db "
    "kernel_debug kernel_lineinfo kernel_profile memory_promotion reuse_zeroed_memory static_fusion_count wait_debugger "
    "warn_register_spill tma_pointwise tma_inner_persistent tma_reduction ws_normalization host_ir_lowering host_ir_jit "
    "insert_resharding_after fast_math p2p_protocol p2p_transport multicast_protocol".split()
)
DISABLE_OPTIONS = frozenset(
    "compile_to_sass contig_indexing expr_simplify fallback fma greedy_scheduler grouped_grid_welford_outer_opt "
    "index_hoist magic_zero matmul_expr_eval nvrtc_caching nvtx parallel_compile predicate_elimination "
    "python_inline_definitions kernel_reuse var_name_remapping welford_vectorization resize_scheduler "
    "reuse_mismatched_type_registers multidevice infer_contiguity".split()
)


def check(enable: Iterable[str], disable: Iterable[str]) -> None:
    """Raise InputError for a name that is no option."""
    for names, known, what in (
        (enable, ENABLE_OPTIONS, "enable_option"),
        (disable, DISABLE_OPTIONS, "disable_option"),
    ):
        for name in names:
            if name not in known:
                raise InputError(
                    f"execute: Unrecognized {what}: {name}; known are {', '.join(sorted(known))}"
                )
