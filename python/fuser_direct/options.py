"""Options of `execute` and of the environment, as the peer names them; each is accepted, unknown
names are refused.

These make a difference: `autotune`, which the peer doesn't have, `fast_math` and `kernel_profile`
(enable), the dumps that `compiler.dump` writes, and any item of NVFUSER_PROF, which measures every
kernel (`profiler`).
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterable

from fuser_direct.errors import InputError
from fuser_direct.records import dataclass

ENABLE_OPTIONS = frozenset(
    [
        "autotune",
        "cutlass_scheduler",
        "fuse_matmul",
        "fuse_multiple_matmuls",
        "id_model_extra_validation",
        "io_to_lower_precision",
        "kernel_db",
        "kernel_debug",
        "kernel_lineinfo",
        "kernel_profile",
        "memory_promotion",
        "reuse_zeroed_memory",
        "static_fusion_count",
        "wait_debugger",
        "warn_register_spill",
        "tma_pointwise",
        "tma_inner_persistent",
        "tma_reduction",
        "ws_normalization",
        "host_ir_lowering",
        "host_ir_jit",
        "insert_resharding_after",
        "fast_math",
        "p2p_protocol",
        "p2p_transport",
        "multicast_protocol",
    ]
)
DISABLE_OPTIONS = frozenset(
    [
        "compile_to_sass",
        "contig_indexing",
        "expr_simplify",
        "fallback",
        "fma",
        "greedy_scheduler",
        "grouped_grid_welford_outer_opt",
        "index_hoist",
        "magic_zero",
        "matmul_expr_eval",
        "nvrtc_caching",
        "nvtx",
        "parallel_compile",
        "predicate_elimination",
        "python_inline_definitions",
        "kernel_reuse",
        "var_name_remapping",
        "welford_vectorization",
        "resize_scheduler",
        "reuse_mismatched_type_registers",
        "multidevice",
        "infer_contiguity",
    ]
)

DUMP_OPTIONS = frozenset(
    [
        "bank_conflict",
        "buffer_reuse",
        "build_info",
        "communication",
        "cubin",
        "cuda_full",
        "cuda_kernel",
        "cuda_to_file",
        "debug_info",
        "draw_segmented_fusion",
        "dump_eff_bandwidth",
        "dynamic_shared_memory",
        "expr_simplify",
        "expr_sort",
        "fusion_args",
        "fusion_ir",
        "fusion_ir_concretized",
        "fusion_ir_graph",
        "fusion_ir_math",
        "fusion_ir_original",
        "fusion_ir_presched",
        "fusion_ir_preseg",
        "fusion_segmenter_log",
        "fusion_segments",
        "fusion_segments_drawing",
        "global_zeroed_memory",
        "halo",
        "host_ir",
        "host_ir_lowering_logging",
        "host_ir_jit",
        "index_type",
        "indexing",
        "indexing_verbose",
        "inlining",
        "kernel_args",
        "kernel_ir",
        "launch_param",
        "loop_rotation",
        "lower_name_only",
        "lower_verbose",
        "mutator",
        "occupancy",
        "parallel_dimensions",
        "pre_segmenter_logging",
        "predicate_elimination",
        "ptx",
        "ptxas_verbose",
        "python_definition",
        "python_definition_segments",
        "python_frontend_debug",
        "sass",
        "sass_to_file",
        "scheduler_debug",
        "scheduler_params",
        "segmented_fusion",
        "segmenter_logging",
        "sync_map",
        "tma_gmem_view",
        "transform_propagator",
        "vectorization_helper",
    ]
)
PROF_OPTIONS = frozenset(["enable", "enable.nocupti", "print", "print.nocupti", "print.verbose"])
# An item of a list: a name, with arguments in parentheses or without. Compiled where it is used.
_ITEM = r"\s*([^,()\s]+)\s*(?:\([^()]*\))?\s*(?:,|$)"


@dataclass(frozen=True, slots=True)
class Environment:
    """What the environment variables NVFUSER_ENABLE, _DISABLE, _DUMP and _PROF name."""

    enable: frozenset[str]
    disable: frozenset[str]
    dump: frozenset[str]
    prof: frozenset[str]


@functools.cache
def environment() -> Environment:
    """The options of the environment, read at the first call. Raises InputError for names that
    are no option."""
    return Environment(
        _parsed("NVFUSER_ENABLE", ENABLE_OPTIONS),
        _parsed("NVFUSER_DISABLE", DISABLE_OPTIONS),
        _parsed("NVFUSER_DUMP", DUMP_OPTIONS),
        _parsed("NVFUSER_PROF", PROF_OPTIONS),
    )


def _parsed(variable: str, known: frozenset[str]) -> frozenset[str]:
    text = os.environ.get(variable, "")
    if not text:
        return frozenset()
    an_item = re.compile(_ITEM)
    names = set()
    place = 0
    while place < len(text):
        item = an_item.match(text, place)
        if item is None:
            raise InputError(
                f"{variable}: can't read {text[place:]!r}; expected names with commas between "
                "them, each with "
                "arguments in parentheses or without"
            )
        if item.group(1) not in known:
            raise InputError(
                f"{variable}: Unrecognized option: {item.group(1)}; known are "
                f"{', '.join(sorted(known))}"
            )
        names.add(item.group(1))
        place = item.end()
    return frozenset(names)


def effective(
    enable: Iterable[str], disable: Iterable[str]
) -> tuple[frozenset[str], frozenset[str]]:
    """A call's options with those of the environment. Raises InputError for a name that is no
    option."""
    check(enable, disable)
    known = environment()
    return known.enable | set(enable), known.disable | set(disable)


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
