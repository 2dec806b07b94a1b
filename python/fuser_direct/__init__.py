"""fuser_direct: tensor math into few generated kernels, on NVIDIA GPUs and on any CPU.

Importing this package imports neither PyTorch nor llvmlite and opens no library of CUDA.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fuser_direct import errors, ops
from fuser_direct.define import compute_tensor_descriptor, define_scalar, define_tensor
from fuser_direct.definition import FusionDefinition
from fuser_direct.enums import (
    CacheOp,
    CommunicatorBackend,
    DataType,
    IdMappingMode,
    LoadStoreOpType,
    MemoryType,
    ParallelType,
    SchedulerType,
)
from fuser_direct.errors import (
    CompileError,
    CudaError,
    CudaUnavailableError,
    DefinitionError,
    DefinitionStateError,
    DefinitionTypeError,
    FuserError,
    InputError,
    InputTypeError,
    LaunchError,
    UnsupportedDeviceError,
    UnsupportedDTypeError,
    UnsupportedError,
    UsageError,
    ValidationError,
)
from fuser_direct.ir.fusion import Fusion, FusionGuard
from fuser_direct.ir.values import (
    BroadcastOp,
    Expr,
    IterDomain,
    Merge,
    ReshapeOp,
    Split,
    SqueezeOp,
    Statement,
    TensorDomain,
    TensorView,
    Val,
)
from fuser_direct.version import __version__, version

if TYPE_CHECKING:
    from fuser_direct import idm, multidevice, nvfuser_direct_version, schedule
    from fuser_direct import pytorch_utils as pytorch_utils
    from fuser_direct._ext import CompileParams, KernelExecutor, LaunchParams
    from fuser_direct.alias import install_as_nvfuser_direct
    from fuser_direct.artifact import Artifact, compile, load
    from fuser_direct.compiler.explain import explain
    from fuser_direct.dtensors import execute_with_dtensors
    from fuser_direct.executor import FusionExecutorCache, counters
    from fuser_direct.ir.translate import translate_fusion
    from fuser_direct.lru_cache import LRUCache, LruFusionCache
    from fuser_direct.matmul_enums import (
        MatmulBufferingLoopLevel,
        MatmulCircularBufferingStrategy,
        MatmulTileRasterizationOrder,
        MatmulTilingStrategy,
        MmaMacroArch,
    )
    from fuser_direct.params import (
        CircularBufferOptions,
        ClusterDims,
        GemmTile,
        HeuristicParams,
        MatmulParams,
        MatMulTileOptions,
        MmaMacro,
        MmaMacroEncode,
        PointwiseParams,
        ReductionParams,
        SupportedVectorization,
    )
    from fuser_direct.profiler import (
        FusionProfile,
        KernelProfile,
        PythonProfiler,
        get_fusion_profile,
        profile,
        reset_profiler,
    )
    from fuser_direct.specs import TensorSpec
    from fuser_direct.tuning import autotune
    from fuser_direct.validation import get_val_tolerances, validate_with_auto_inferred_outputs

# What lives in the extension, or needs it, is imported at its first use; so are submodules.
_LAZY = {
    "autotune": "fuser_direct.tuning",
    "Artifact": "fuser_direct.artifact",
    "CircularBufferOptions": "fuser_direct.params",
    "ClusterDims": "fuser_direct.params",
    "CompileParams": "fuser_direct._ext",
    "FusionExecutorCache": "fuser_direct.executor",
    "counters": "fuser_direct.executor",
    "FusionProfile": "fuser_direct.profiler",
    "GemmTile": "fuser_direct.params",
    "HeuristicParams": "fuser_direct.params",
    "KernelExecutor": "fuser_direct._ext",
    "KernelProfile": "fuser_direct.profiler",
    "LRUCache": "fuser_direct.lru_cache",
    "LaunchParams": "fuser_direct._ext",
    "LruFusionCache": "fuser_direct.lru_cache",
    "MatMulTileOptions": "fuser_direct.params",
    "MatmulParams": "fuser_direct.params",
    "MmaMacro": "fuser_direct.params",
    "MmaMacroEncode": "fuser_direct.params",
    "PointwiseParams": "fuser_direct.params",
    "MatmulBufferingLoopLevel": "fuser_direct.matmul_enums",
    "MatmulCircularBufferingStrategy": "fuser_direct.matmul_enums",
    "MatmulTileRasterizationOrder": "fuser_direct.matmul_enums",
    "MatmulTilingStrategy": "fuser_direct.matmul_enums",
    "MmaMacroArch": "fuser_direct.matmul_enums",
    "PythonProfiler": "fuser_direct.profiler",
    "ReductionParams": "fuser_direct.params",
    "SupportedVectorization": "fuser_direct.params",
    "execute_with_dtensors": "fuser_direct.dtensors",
    "get_fusion_profile": "fuser_direct.profiler",
    "get_val_tolerances": "fuser_direct.validation",
    "install_as_nvfuser_direct": "fuser_direct.alias",
    "profile": "fuser_direct.profiler",
    "reset_profiler": "fuser_direct.profiler",
    "translate_fusion": "fuser_direct.ir.translate",
    "validate_with_auto_inferred_outputs": "fuser_direct.validation",
    "TensorSpec": "fuser_direct.specs",
    "compile": "fuser_direct.artifact",
    "explain": "fuser_direct.compiler.explain",
    "load": "fuser_direct.artifact",
}
_SUBMODULES = frozenset(
    {"idm", "multidevice", "nvfuser_direct_version", "pytorch_utils", "schedule"}
)

# Without pytorch_utils, which imports PyTorch: `import *` must work where there is none.
__all__ = [
    "Artifact",
    "BroadcastOp",
    "CacheOp",
    "CircularBufferOptions",
    "ClusterDims",
    "CommunicatorBackend",
    "CompileError",
    "CompileParams",
    "CudaError",
    "CudaUnavailableError",
    "DataType",
    "DefinitionError",
    "DefinitionStateError",
    "DefinitionTypeError",
    "Expr",
    "FuserError",
    "Fusion",
    "FusionDefinition",
    "FusionExecutorCache",
    "FusionGuard",
    "FusionProfile",
    "GemmTile",
    "HeuristicParams",
    "IdMappingMode",
    "InputError",
    "InputTypeError",
    "IterDomain",
    "KernelExecutor",
    "KernelProfile",
    "LRUCache",
    "LaunchError",
    "LaunchParams",
    "LoadStoreOpType",
    "LruFusionCache",
    "MatMulTileOptions",
    "MatmulBufferingLoopLevel",
    "MatmulCircularBufferingStrategy",
    "MatmulParams",
    "MatmulTileRasterizationOrder",
    "MatmulTilingStrategy",
    "MemoryType",
    "Merge",
    "MmaMacro",
    "MmaMacroArch",
    "MmaMacroEncode",
    "ParallelType",
    "PointwiseParams",
    "PythonProfiler",
    "ReductionParams",
    "ReshapeOp",
    "SchedulerType",
    "Split",
    "SqueezeOp",
    "Statement",
    "SupportedVectorization",
    "TensorDomain",
    "TensorSpec",
    "TensorView",
    "UnsupportedDTypeError",
    "UnsupportedDeviceError",
    "UnsupportedError",
    "UsageError",
    "Val",
    "ValidationError",
    "__version__",
    "autotune",
    "compile",
    "compute_tensor_descriptor",
    "counters",
    "define_scalar",
    "define_tensor",
    "errors",
    "execute_with_dtensors",
    "explain",
    "get_fusion_profile",
    "get_val_tolerances",
    "idm",
    "install_as_nvfuser_direct",
    "load",
    "multidevice",
    "nvfuser_direct_version",
    "ops",
    "profile",
    "reset_profiler",
    "schedule",
    "translate_fusion",
    "validate_with_auto_inferred_outputs",
    "version",
]


def __getattr__(name: str) -> Any:
    if name in _SUBMODULES:
        return import_module(f"fuser_direct.{name}")
    module = _LAZY.get(name)
    if module is None:
        raise AttributeError(f"module 'fuser_direct' has no attribute {name!r}")
    value = getattr(import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY, *_SUBMODULES})
