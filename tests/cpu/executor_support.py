"""Programs for the executor's tests; kernels are Python callbacks, so no compiler is needed."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fuser_direct import _ext

_SIGNATURE = ctypes.CFUNCTYPE(
    None, ctypes.POINTER(ctypes.c_int64), ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p
)

# A kernel in Python: (argument slots, begin, end, address of the scratch memory).
Body = Callable[[Any, int, int, int], None]

FLOAT, DOUBLE, HALF, BFLOAT16 = (2, 32), (2, 64), (2, 16), (4, 16)
INT32, INT64, BOOL = (0, 32), (0, 64), (6, 8)
COMPLEX64, COMPLEX128 = (5, 64), (5, 128)


def kernel(body: Body) -> _ext.CpuKernel:
    """A CPU kernel that calls `body`."""

    def run(slots: Any, begin: int, end: int, scratch: int | None) -> None:
        body(slots, begin, end, scratch or 0)

    callback = _SIGNATURE(run)
    address = ctypes.cast(callback, ctypes.c_void_p).value
    assert address is not None
    return _ext.CpuKernel(address, callback)


def memory(address: int, count: int, dtype: Any = np.float32) -> NDArray[Any]:
    """The `count` elements at an address, as an array over that memory."""
    size = count * np.dtype(dtype).itemsize
    return np.frombuffer((ctypes.c_char * size).from_address(address), dtype=dtype)


def elementwise(
    count: int, function: Callable[..., Any], dtype: Any = np.float32
) -> _ext.CpuKernel:
    """A kernel of `count` dense elements: last argument = function(other arguments)."""
    arity = function.__code__.co_argcount

    def body(slots: Any, begin: int, end: int, scratch: int) -> None:
        operands = [memory(slots[i], count, dtype)[begin:end] for i in range(arity)]
        memory(slots[arity], count, dtype)[begin:end] = function(*operands)

    return kernel(body)


def pointers(*buffers: int) -> list[tuple[str, int, int]]:
    """Pointer arguments to the beginning of each buffer."""
    return [("pointer", buffer, 0) for buffer in buffers]


class Compiler:
    """Counts its calls and hands each on to `make(args)`."""

    def __init__(self, make: Callable[[Sequence[_ext.ArgInfo]], _ext.Program]) -> None:
        self.make = make
        self.calls: list[tuple[list[_ext.ArgInfo], int | None, Any]] = []

    def __call__(self, args: list[_ext.ArgInfo], device: int | None, options: Any) -> _ext.Program:
        self.calls.append((args, device, options))
        return self.make(args)


def add_program(args: Sequence[_ext.ArgInfo]) -> _ext.Program:
    """x + y of two dense float tensors of one layout; an output laid out as x."""
    x = args[0]
    program = _ext.Program(1, 0, len(args))
    out = program.add_buffer(*x.dtype, x.shape, x.strides)
    count = int(np.prod(x.shape))
    add = elementwise(count, lambda a, b: a + b)
    program.launch_cpu(add, count, 1 << 30, 0, pointers(0, 1, out))
    program.add_output(out)
    return program


def forward_program(args: Sequence[_ext.ArgInfo]) -> _ext.Program:
    """Returns input 0 itself."""
    program = _ext.Program(1, 0, len(args))
    program.add_output(0)
    return program


def cache(
    make: Callable[[Sequence[_ext.ArgInfo]], _ext.Program], shape_scalars: Sequence[int] = ()
) -> tuple[_ext.ExecutorCache, Compiler]:
    """An executor over `make`, and the compiler that counts its misses."""
    compiler = Compiler(make)
    return _ext.ExecutorCache(compiler, list(shape_scalars)), compiler


class _DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
        ("manager", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    )


class CudaTensor:
    """Four floats at an address on cuda:1, described as old DLPack did, without strides."""

    def __init__(self, address: int) -> None:
        self.shape = (ctypes.c_int64 * 1)(4)
        self.struct = _DLTensor(address, 2, 1, 1, 2, 32, 1, self.shape, None, 0, None, None)

    def __dlpack__(self, stream: int | None = None) -> Any:
        # Work is queued on PyTorch's stream, where there is one.
        assert stream == (1 if "torch" in sys.modules else -1)
        make = ctypes.pythonapi.PyCapsule_New
        make.restype = ctypes.py_object
        make.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
        return make(ctypes.addressof(self.struct), b"dltensor", None)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (2, 1)


def run_script(script: str, **environment: str) -> str:
    """Output of a Python script in a process of its own."""
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()
