"""fuser_direct: tensor math into few generated kernels, on NVIDIA GPUs and on any CPU.

Importing this package imports neither PyTorch nor llvmlite and opens no library of CUDA.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fuser_direct import errors, ops
from fuser_direct.define import compute_tensor_descriptor, define_scalar, define_tensor
from fuser_direct.definition import FusionDefinition
from fuser_direct.enums import DataType, MemoryType, ParallelType, SchedulerType
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
from fuser_direct.ir.translate import translate_fusion
from fuser_direct.ir.values import (
    BroadcastOp,
    Expr,
    IterDomain,
    ReshapeOp,
    SqueezeOp,
    Statement,
    TensorDomain,
    TensorView,
    Val,
)
from fuser_direct.version import __version__, version

if TYPE_CHECKING:
    from fuser_direct._ext import CompileParams, KernelExecutor, LaunchParams
    from fuser_direct.executor import FusionExecutorCache

# Classes that live in the extension, or need it, are imported at their first use.
_LAZY = {
    "CompileParams": "fuser_direct._ext",
    "FusionExecutorCache": "fuser_direct.executor",
    "KernelExecutor": "fuser_direct._ext",
    "LaunchParams": "fuser_direct._ext",
}

__all__ = [
    "BroadcastOp",
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
    "InputError",
    "InputTypeError",
    "IterDomain",
    "KernelExecutor",
    "LaunchError",
    "LaunchParams",
    "MemoryType",
    "ParallelType",
    "ReshapeOp",
    "SchedulerType",
    "SqueezeOp",
    "Statement",
    "TensorDomain",
    "TensorView",
    "UnsupportedDTypeError",
    "UnsupportedDeviceError",
    "UnsupportedError",
    "UsageError",
    "Val",
    "ValidationError",
    "__version__",
    "compute_tensor_descriptor",
    "define_scalar",
    "define_tensor",
    "errors",
    "ops",
    "translate_fusion",
    "version",
]


def __getattr__(name: str) -> Any:
    module = _LAZY.get(name)
    if module is None:
        raise AttributeError(f"module 'fuser_direct' has no attribute {name!r}")
    value = getattr(import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
