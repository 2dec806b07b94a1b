"""Builds kernels by hand and runs them through ctypes: code generation alone, without compiler or
executor.
"""

from __future__ import annotations

import ctypes
import itertools
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from fuser_direct.codegen import llvm
from fuser_direct.codegen.llvm_types import CpuTarget
from fuser_direct.compiler import build_cpu
from fuser_direct.dtypes import INFO
from fuser_direct.enums import DataType
from fuser_direct.ir.kept import kept_array_bytes, kept_nodes
from fuser_direct.ir.kernel import AxisKind, Buffer, Kernel, Node, Stage, Store
from fuser_direct.ops.reference_pointwise import cast, reference_class, round_to
from fuser_direct.ops.reference_pointwise import pointwise as reference_pointwise
from fuser_direct.schedulers.schedule import (
    KEPT_ON_STACK,
    CpuColumn,
    CpuPointwise,
    CpuRow,
    CpuSchedule,
    CpuTiled,
)

D = DataType


def narrowed(target: CpuTarget, level: str) -> CpuTarget:
    """The host as if it had only `level`: native, avx2 or sse2."""
    if level == "native":
        return target
    banned = ["avx512", "avx10", "amx"] if level == "avx2" else [
        "avx", "sse3", "ssse3", "sse4", "fma", "f16c", "xop", "amx", "vaes", "vpclmul", "gfni",
        "bmi", "popcnt", "sha", "pclmul",
        "aes",
    ]  # fmt: skip
    features = [
        "-" + name[1:] if name[1:].startswith(tuple(banned)) else name
        for name in target.features.split(",")
    ]
    cpu = target.cpu if level == "native" else "x86-64"
    return replace(
        target, cpu=cpu, features=",".join(features), vector_bits=256 if level == "avx2" else 128
    )


def levels() -> list[str]:
    """The feature levels that this machine can run."""
    host = build_cpu.host_target()
    if not host.is_x86:
        return ["native"]
    return ["native", *(["avx2"] if host.has("avx2") else []), "sse2"]


@dataclass
class Build:
    """Collects nodes and buffers of one kernel; methods return node numbers."""

    axes: str
    buffers: list[Buffer] = field(default_factory=list)
    scalars: list[DataType] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)

    def node(self, op: str, args: Sequence[int], dtype: DataType, attr: Any = None) -> int:
        self.nodes.append(Node(op, tuple(args), dtype, attr))
        return len(self.nodes) - 1

    def buffer(self, dtype: DataType, strides: Sequence[int], is_output: bool = False) -> int:
        self.buffers.append(Buffer(dtype, tuple(strides), is_output))
        return len(self.buffers) - 1

    def load(self, dtype: DataType, strides: Sequence[int]) -> int:
        return self.node("load", (), dtype, self.buffer(dtype, strides))

    def again(self, buffer: int) -> int:
        return self.node("load", (), self.buffers[buffer].dtype, buffer)

    def param(self, dtype: DataType) -> int:
        self.scalars.append(dtype)
        return self.node("param", (), dtype, len(self.scalars) - 1)

    def const(self, value: Any, dtype: DataType) -> int:
        return self.node("const", (), dtype, value)

    def out(self, node: int, strides: Sequence[int]) -> Store:
        return Store(self.buffer(self.nodes[node].dtype, strides, True), node)

    def kernel(
        self, stages: Sequence[Stage], prologue: Sequence[int] = (), name: str = "kernel"
    ) -> Kernel:
        axes: tuple[AxisKind, ...] = tuple(self.axes)  # type: ignore[assignment]
        return Kernel(
            name,
            axes,
            tuple(self.buffers),
            tuple(self.scalars),
            tuple(self.nodes),
            tuple(prologue),
            tuple(stages),
        )


def stage(
    loop: Sequence[int] = (),
    reduces: Sequence[int] = (),
    stores: Sequence[Store] = (),
    after: Sequence[int] = (),
    row_stores: Sequence[Store] = (),
) -> Stage:
    return Stage(tuple(loop), tuple(reduces), tuple(stores), tuple(after), tuple(row_stores))


def scalar_slots(dtype: DataType, value: Any) -> list[int]:
    """A scalar argument as the ABI's 8-byte slots."""
    if dtype is D.ComplexDouble:
        return [*struct.unpack("<2q", struct.pack("<2d", value.real, value.imag))]
    if dtype is D.ComplexFloat:
        return [*struct.unpack("<q", struct.pack("<2f", value.real, value.imag))]
    if dtype is D.Double:
        return [*struct.unpack("<q", struct.pack("<d", value))]
    if INFO[dtype].kind == "float":
        return [*struct.unpack("<q", struct.pack("<fi", value, -1))]
    return [int(value)]


def scratch_elems(kernel: Kernel, schedule: CpuSchedule) -> int:
    """Floats of scratch memory that a kernel needs."""
    if not isinstance(schedule, CpuRow) or schedule.capacity == KEPT_ON_STACK:
        return 0
    sizes = (kept_array_bytes(kernel, n, schedule.capacity) for n in kept_nodes(kernel))
    return sum(sizes) // 4


class Runner:
    """A built kernel. Arrays of bfloat16 are passed as uint16."""

    def __init__(
        self, kernel: Kernel, schedule: CpuSchedule, target: CpuTarget | None = None
    ) -> None:
        self.kernel, self.schedule = kernel, schedule
        self.scratch = np.zeros(scratch_elems(kernel, schedule) + 16, np.float32)
        target = target or build_cpu.host_target()
        self.text = llvm.emit(kernel, schedule, target)
        address, self.owner = build_cpu.build(self.text, kernel.name, target)
        self.function = ctypes.CFUNCTYPE(
            None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p
        )(address)

    def slots(
        self,
        arrays: Sequence[np.ndarray],
        strides: Sequence[Sequence[int]],
        extents: Sequence[int],
        scalars: Sequence[Any] = (),
        chunk: int = 0,
    ) -> Any:
        """The argument array; `strides[b][a]` in elements, used where dynamic."""
        values: list[int] = []
        for param in self.kernel.params():
            if param.kind == "pointer":
                values.append(arrays[param.buffer].ctypes.data)
            elif param.kind == "scalar":
                values += scalar_slots(self.kernel.scalars[param.scalar], scalars[param.scalar])
            elif param.kind == "extent":
                values.append(extents[param.axis])
            elif param.kind == "chunk":
                values.append(chunk)
            else:
                values.append(strides[param.buffer][param.axis])
        return (ctypes.c_int64 * len(values))(*values)

    def items(self, extents: Sequence[int]) -> int:
        """The number of work items."""
        axes = list(self.kernel.iteration_axes)
        if isinstance(self.schedule, CpuRow):
            return int(np.prod([extents[a] for a in axes], dtype=np.int64))
        inner = extents[axes[-1]] if axes else 1
        if isinstance(self.schedule, CpuTiled):
            bands = -(-extents[axes[-2]] // self.schedule.rows)
            outer = int(np.prod([extents[a] for a in axes[:-2]], dtype=np.int64))
            return outer * bands * -(-inner // self.schedule.columns)
        blocks = -(-inner // self.schedule.block)
        return int(np.prod([extents[a] for a in axes[:-1]], dtype=np.int64)) * blocks

    def __call__(
        self,
        arrays: Sequence[np.ndarray],
        strides: Sequence[Sequence[int]],
        extents: Sequence[int],
        scalars: Sequence[Any] = (),
        chunk: int = 0,
        pieces: int = 1,
    ) -> None:
        """Run all work items, in `pieces` calls."""
        args = self.slots(arrays, strides, extents, scalars, chunk)
        items = self.items(extents)
        cuts = [items * k // pieces for k in range(pieces + 1)]
        for begin, end in itertools.pairwise(cuts):
            # The first line border in the array.
            scratch = (self.scratch.ctypes.data + 63) // 64 * 64
            self.function(ctypes.cast(args, ctypes.c_void_p), begin, end, scratch)


def level(name: str) -> CpuTarget:
    """The host narrowed to a feature level."""
    return narrowed(build_cpu.host_target(), name)


def copy_kernel(dtype: DataType, source: int, target: int) -> Kernel:
    """One axis copied; strides along it given."""
    b = Build("i")
    x = b.load(dtype, (source,))
    return b.kernel([stage([x], stores=[b.out(x, (target,))])])


def pointwise(
    kernel: Kernel, target: CpuTarget | None = None, block: int = 128, streaming: bool = False
) -> Runner:
    flags = tuple(streaming and b.is_output for b in kernel.buffers)
    return Runner(kernel, CpuPointwise(block, flags), target)


def row(
    kernel: Kernel,
    target: CpuTarget | None = None,
    streaming: bool = False,
    ahead: bool = False,
    capacity: int = KEPT_ON_STACK,
) -> Runner:
    flags = tuple(streaming and b.is_output for b in kernel.buffers)
    inputs = tuple(ahead and not b.is_output for b in kernel.buffers)
    return Runner(kernel, CpuRow(flags, inputs, capacity), target)


def column(
    kernel: Kernel,
    target: CpuTarget | None = None,
    block: int = 128,
    streaming: bool = False,
    one_by_one: bool = False,
) -> Runner:
    flags = tuple(streaming and b.is_output for b in kernel.buffers)
    ahead = tuple(one_by_one and not b.is_output for b in kernel.buffers)
    schedule = CpuColumn(block, flags, one_by_one=one_by_one, ahead=ahead)
    return Runner(kernel, schedule, target)


def tiled(kernel: Kernel, target: CpuTarget, rows: int, columns: int, short: int = 0) -> Runner:
    flags = tuple(b.is_output for b in kernel.buffers)
    return Runner(kernel, CpuTiled(rows, columns, short, flags), target)


def turned_column(
    kernel: Kernel, target: CpuTarget, block: int, rows: int, short: int = 0
) -> Runner:
    flags = tuple(b.is_output for b in kernel.buffers)
    return Runner(kernel, CpuColumn(block, flags, rows, short), target)


def to_bfloat16(x: np.ndarray) -> np.ndarray:
    """float32 rounded to nearest even, as bits."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32).astype(np.uint64)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(x), 0x7FC0, rounded).astype(np.uint16)


def from_bfloat16(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def interpret(
    kernel: Kernel,
    arrays: Sequence[np.ndarray],
    strides: Sequence[Sequence[int]],
    extents: Sequence[int],
    scalars: Sequence[Any] = (),
) -> list[np.ndarray]:
    """What each store writes, in order of the stages, as arrays over the kernel's axes: the
    semantics of Kernel IR in NumPy.

    Floats are float64 all through, except that half types round.
    """
    values: list[np.ndarray] = []
    reduced = kernel.reduction_axes
    for node in kernel.nodes:
        args = [values[a] for a in node.args]
        if node.op in ("load", "gather"):
            value = loaded(node, args, arrays, kernel, strides, extents)
        elif node.op in ("param", "const"):
            raw = scalars[node.attr] if node.op == "param" else node.attr  # type: ignore[call-overload]
            value = round_to(np.asarray(raw).astype(reference_class(node.dtype)), node.dtype)
            value = value.reshape([1] * len(extents))
        elif node.op == "index":
            shape = [1] * len(extents)
            shape[node.attr] = extents[node.attr]  # type: ignore[call-overload, index]
            value = np.arange(extents[node.attr]).reshape(shape)  # type: ignore[call-overload]
        elif node.op == "cast":
            value = cast(args[0], kernel.nodes[node.args[0]].dtype, node.dtype)
        elif node.op == "reduce":
            whole = np.broadcast_to(
                args[0],
                [
                    e if a in reduced else s
                    for a, (e, s) in enumerate(zip(extents, args[0].shape, strict=True))
                ],
            )
            value = round_to(reduce_over(str(node.attr), whole, reduced), node.dtype)
        else:
            value = reference_pointwise(node.op, args, node.dtype)
        values.append(value)
    stores = [s for stage_ in kernel.stages for s in (*stage_.stores, *stage_.row_stores)]
    return [values[s.node] for s in stores]


def loaded(
    node: Node,
    args: list[np.ndarray],
    arrays: Sequence[np.ndarray],
    kernel: Kernel,
    strides: Sequence[Sequence[int]],
    extents: Sequence[int],
) -> np.ndarray:
    """What a LOAD or GATHER node gives; only elements that it allows are looked at."""
    assert isinstance(node.attr, int)
    array, buffer = arrays[node.attr], kernel.buffers[node.attr]
    if node.op == "load" and not args:
        return to_class(strided(array, buffer, strides[node.attr], extents), node.dtype)
    places = np.zeros([1] * len(extents), np.int64)
    for a, (step, fixed) in enumerate(zip(strides[node.attr], buffer.strides, strict=True)):
        shape = [1] * len(extents)
        shape[a] = extents[a]
        places = places + np.arange(extents[a]).reshape(shape) * (step if fixed == -1 else fixed)
    if node.op == "gather":
        places = places + args[0]
    allowed = args[-1] if len(args) == (2 if node.op == "gather" else 1) else np.asarray(True)
    places, allowed = np.broadcast_arrays(places, allowed)
    value = np.zeros(places.shape, array.dtype)
    value[allowed] = array.ravel()[places[allowed]]
    return to_class(value, node.dtype)


def reduce_over(op: str, x: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    """Reduction with the identities of Kernel IR."""
    with np.errstate(all="ignore"):
        if op in ("sum", "prod"):
            function = np.add if op == "sum" else np.multiply
            if x.dtype == np.bool_:
                function = np.logical_or if op == "sum" else np.logical_and
            return np.asarray(function.reduce(x, axis=axes, keepdims=True, dtype=x.dtype))
        if x.dtype == np.bool_:
            first: Any = op == "min"
        elif x.dtype.kind == "f":
            first = -np.inf if op == "max" else np.inf
        else:
            first = np.iinfo(x.dtype).min if op == "max" else np.iinfo(x.dtype).max
        function = np.maximum if op == "max" else np.minimum
        return np.asarray(function.reduce(x, axis=axes, keepdims=True, initial=first))


def strided(
    array: np.ndarray, buffer: Buffer, strides: Sequence[int], extents: Sequence[int]
) -> np.ndarray:
    """The buffer as an array over the kernel's axes; `array` starts at the element that all-zero
    indices name.
    """
    steps = [
        (s if fixed == -1 else fixed) * array.itemsize
        for s, fixed in zip(strides, buffer.strides, strict=True)
    ]
    shape = [e if step else 1 for e, step in zip(extents, steps, strict=True)]
    return np.lib.stride_tricks.as_strided(array, shape, steps)


def to_class(x: np.ndarray, dtype: DataType) -> np.ndarray:
    """Memory -> reference class."""
    with np.errstate(all="ignore"):
        whole = from_bfloat16(np.ascontiguousarray(x)) if dtype is D.BFloat16 else x
        return whole.astype(reference_class(dtype))


def to_memory(x: np.ndarray, dtype: DataType) -> np.ndarray:
    """Reference class -> memory."""
    return (
        to_bfloat16(np.asarray(x).astype(np.float32))
        if dtype is D.BFloat16
        else np.asarray(x).astype(memory(dtype))
    )


def memory(dtype: DataType) -> np.dtype[Any]:
    """The NumPy type of the harness's arrays of `dtype`."""
    return np.dtype(np.uint16 if dtype is D.BFloat16 else INFO[dtype].numpy)


def random_values(dtype: DataType, shape: Sequence[int], rng: np.random.Generator) -> np.ndarray:
    """Values of `dtype` in its memory type."""
    kind = INFO[dtype].kind
    if kind == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if kind == "int":
        return rng.integers(-9, 10, shape).astype(memory(dtype))
    if kind == "complex":
        return (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(memory(dtype))
    return to_memory(rng.standard_normal(shape), dtype)


# Relative error allowed per element of a float result, with a reduction of up to a few thousand
# elements behind it.
TOLERANCE = {
    D.Double: 1e-13, D.Float: 2e-6, D.Half: 1.1e-3, D.BFloat16: 8.5e-3, D.ComplexFloat: 2e-6,
    D.ComplexDouble: 1e-13,
}  # fmt: skip


def check(
    run: Runner,
    arrays: Sequence[np.ndarray],
    strides: Sequence[Sequence[int]],
    extents: Sequence[int],
    scalars: Sequence[Any] = (),
    scale: float = 1.0,
    pieces: int = 1,
) -> None:
    """Run and compare every store with `interpret`; `scale`: size that the absolute tolerance is
    relative to.
    """
    kernel = run.kernel
    expected = interpret(kernel, arrays, strides, extents, scalars)
    run(arrays, strides, extents, scalars, pieces=pieces)
    stores = [s for stage_ in kernel.stages for s in (*stage_.stores, *stage_.row_stores)]
    for store, want in zip(stores, expected, strict=True):
        dtype = kernel.buffers[store.buffer].dtype
        got = to_class(
            strided(
                arrays[store.buffer], kernel.buffers[store.buffer], strides[store.buffer], extents
            ),
            dtype,
        )
        if want.size:
            compare(got, np.broadcast_to(want, got.shape), dtype, scale)


def compare(got: np.ndarray, want: np.ndarray, dtype: DataType, scale: float = 1.0) -> None:
    """Equal for ints and bools, near for floats, NaN where NaN is due."""
    if dtype in TOLERANCE:
        bound = TOLERANCE[dtype]
        np.testing.assert_allclose(got, want, rtol=bound, atol=bound * scale)
    else:
        np.testing.assert_array_equal(got, want)
