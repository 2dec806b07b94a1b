"""Runs the text of CUDA kernels on the CPU, with `cuda_emulation.h`, and compares with the
interpreter.
"""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cuda_cases import Case

from fuser_direct.codegen import cuda, interpret
from fuser_direct.codegen import cuda_expr as expr
from fuser_direct.codegen.device_library import blocks
from fuser_direct.cuda import find_nvrtc
from fuser_direct.enums import DataType as D
from fuser_direct.errors import UnsupportedError
from fuser_direct.ir.kernel import DYNAMIC, Kernel
from fuser_direct.schedulers.contract import Dim3
from fuser_direct.schedulers.dividers import divider, launch_params
from fuser_direct.schedulers.schedule import CudaSchedule

# A declaration of shared memory: type, name, extents.
_SHARED = re.compile(r"__shared__ (?:__align__\(16\) )?([\w ]+?) (\w+)((?:\[\d+\])+);")
_HEADER = Path(__file__).parent / "cuda_emulation.h"
_PARAM = {
    "float": ctypes.c_float,
    "double": ctypes.c_double,
    "int": ctypes.c_int,
    "long long": ctypes.c_longlong,
    "unsigned char": ctypes.c_ubyte,
}


def _arguments(kernel: Kernel, schedule: CudaSchedule) -> str:
    texts = []
    for place, param in enumerate(launch_params(kernel, schedule)):
        if param.kind == "pointer":
            kind = expr.storage_type(kernel.buffers[param.buffer].dtype) + "*"
        elif param.kind == "scalar":
            kind = expr.param_type(kernel.scalars[param.scalar])
        else:
            kind = "index_t"
        texts.append(f"*({kind}*)args[{place}]")
    return ", ".join(texts)


def _source(kernel: Kernel, schedule: CudaSchedule) -> str:
    text = cuda.emit(kernel, schedule)
    for block in blocks():
        # Assembly for newer architectures has a plain form beside it.
        has_plain_form = "__CUDA_ARCH__" in block.text
        moves = block.names & {"fd_put", "fd_send"}
        if ("asm" in block.text and not has_plain_form) or moves:
            text = text.replace(block.text, "")
    text = text.replace(
        "extern __shared__ __align__(16) unsigned char shared[]",
        f"__shared__ unsigned char shared[{cuda.shared_bytes(kernel, schedule)}]",
    )
    text = _SHARED.sub(
        r"static __attribute__((aligned(16))) \1 \2_of[16]\3; "
        r"auto& \2 = emulation::shared_variable(\2_of);",
        text,
    )
    call = f"[&] {{ {kernel.name}({_arguments(kernel, schedule)}); }}"
    return (
        f'#include "{_HEADER.name}"\n{text}'
        'extern "C" int run(void** args, dim3 grid, dim3 block, int backwards) {\n'
        f"  return emulation::run_grid(grid, block, {cuda.cluster_of(schedule)}, backwards != 0, "
        f"{call});\n}}\n"
    )


class _Dim3(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint) for name in "xyz"]


_FLAGS = ("-std=gnu++17", "-O1", "-w", "-fwrapv", "-ffp-contract=off", "-fPIC")


def _compile(folder: Path, source: Path, *more: str) -> None:
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("needs g++ to run CUDA text on the CPU")
    command = [compiler, *_FLAGS, "-I", str(folder), *more, str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:4000]


@cache
def _workspace() -> tempfile.TemporaryDirectory[str]:
    """A folder with the precompiled header, without which parsing it takes most of a build."""
    workspace = tempfile.TemporaryDirectory()
    folder = Path(workspace.name)
    shutil.copy(_HEADER, folder)
    _compile(
        folder, folder / _HEADER.name, "-x", "c++-header", "-o", str(folder / f"{_HEADER.name}.gch")
    )
    return workspace


@cache
def _build(kernel: Kernel, schedule: CudaSchedule) -> Any:
    folder = Path(_workspace().name)
    with tempfile.NamedTemporaryFile("w", suffix=".cpp", dir=folder) as source:
        source.write(_source(kernel, schedule))
        source.flush()
        library = Path(source.name).with_suffix(".so")
        _compile(folder, Path(source.name), "-shared", "-o", str(library))
        return ctypes.CDLL(str(library)).run


def launch(
    kernel: Kernel,
    schedule: CudaSchedule,
    grid: int | Dim3,
    arrays: Sequence[np.ndarray[Any, Any]],
    scalars: Sequence[Any],
    extents: Sequence[int],
    strides: Sequence[Sequence[int]],
    chunk: int = 0,
    backwards: bool = False,
    offsets: Sequence[int] = (),
    block: Dim3 | None = None,
) -> None:
    """Runs the emitted text on the CPU; arguments as those of `interpret.run`, the number of
    blocks, and the block where the schedule doesn't give it.

    backwards: threads and blocks take turns in reverse order, which a kernel without races can't
    notice.
    """
    index = ctypes.c_int if schedule.index_bits == 32 else ctypes.c_longlong
    values: list[Any] = []
    for param in launch_params(kernel, schedule):
        if param.kind == "pointer":
            array = arrays[param.buffer]
            skipped = offsets[param.buffer] * array.itemsize if offsets else 0
            values.append(ctypes.c_void_p(array.ctypes.data + skipped))
        elif param.kind == "scalar":
            values.append(_scalar(scalars[param.scalar], kernel.scalars[param.scalar]))
        elif param.kind == "extent":
            values.append(index(extents[param.axis]))
        elif param.kind == "chunk":
            values.append(index(chunk))
        elif param.kind in ("factor", "shift"):
            values.append(index(divider(param, schedule, extents)))
        else:
            assert kernel.buffers[param.buffer].strides[param.axis] == DYNAMIC
            values.append(index(strides[param.buffer][param.axis]))
    pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(v) for v in values))
    if block is None:
        block = (*cuda.threads_of(schedule), 1)
    blocks = (grid, 1, 1) if isinstance(grid, int) else grid
    run = _build(kernel, schedule)
    assert run(pointers, _Dim3(*blocks), _Dim3(*block), int(backwards)) == 1, (
        "threads wait for others that never come"
    )


def _scalar(value: Any, dtype: D) -> Any:
    kind = expr.param_type(dtype)
    if kind in _PARAM:
        return _PARAM[kind](value)
    part = np.float32 if dtype is D.ComplexFloat else np.float64
    memory = np.array([complex(value).real, complex(value).imag], part)
    return (ctypes.c_ubyte * memory.nbytes).from_buffer_copy(memory.tobytes())


# Error of a stored result relative to its size: the half types' own rounding (a float32 result on
# the other side of a tie moves it by one unit, 2^-7 and 2^-10), and for float32 the longest sums
# here.
TOLERANCE = {
    D.BFloat16: 2**-7,
    D.Half: 2**-10,
    D.Float: 2e-6,
    D.Double: 1e-13,
    D.ComplexFloat: 2e-6,
    D.ComplexDouble: 1e-13,
}


def _assert_close(got: np.ndarray[Any, Any], want: np.ndarray[Any, Any], dtype: D) -> None:
    """Compares memory in the reference class; zeros of either sign are equal."""
    x, y = interpret.from_storage(got, dtype), interpret.from_storage(want, dtype)
    if dtype not in TOLERANCE:
        np.testing.assert_array_equal(x, y)
        return
    np.testing.assert_allclose(x, y, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype], equal_nan=True)


def check(case: Case, arrays: list[np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]]:
    """Runs the text in both thread orders and the interpreter on copies of `arrays`; gives the
    text's arrays.
    """
    runs = [[a.copy() for a in arrays] for _ in range(3)]
    arguments = (case.scalars, case.extents, case.strides, case.chunk)
    interpret.run(case.kernel, runs[0], *arguments, offsets=case.offsets)
    for n in (1, 2):
        launch(case.kernel, case.schedule, case.grid, runs[n], *arguments, n == 2, case.offsets)
    for b, buffer in enumerate(case.kernel.buffers):
        assert runs[1][b].tobytes() == runs[2][b].tobytes(), (
            f"buffer {b} depends on the order of threads"
        )
        _assert_close(runs[1][b], runs[0][b], buffer.dtype)
    return runs[1]


def cubin_builder() -> Any:
    """`build_cuda.build`; skips the test where there is no NVRTC."""
    build_cuda = pytest.importorskip(
        "fuser_direct.compiler.build_cuda", reason="needs the extension module"
    )
    try:
        find_nvrtc()
    except UnsupportedError as error:
        pytest.skip(f"NO NVRTC, so its tests did not run: {error}")
    return build_cuda.build
