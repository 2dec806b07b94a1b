"""What the rules of the capability table share: values, sizes and dtypes of one region."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any

import torch
from torch.fx import Node

from fuser_direct import FusionDefinition
from fuser_direct.enums import DataType
from fuser_direct.ir.values import TensorView, Val

DTYPES: dict[torch.dtype, DataType] = {
    torch.float64: DataType.Double,
    torch.float32: DataType.Float,
    torch.float16: DataType.Half,
    torch.bfloat16: DataType.BFloat16,
    torch.int64: DataType.Int,
    torch.int32: DataType.Int32,
    torch.bool: DataType.Bool,
}
HALF = (torch.float16, torch.bfloat16)


class Unmapped(Exception):
    """A node can't be part of a fusion after all; the text says why."""


class Lowering:
    """One region while its FusionDefinition is built.

    A value of a half dtype is held as Float between ops; it is rounded where it is stored, at an
    explicit conversion, and after every op if `emulate`.

    inputs: the graph nodes that the fusion's inputs stand for, in order. scalars: graph inputs that
    are symbolic ints, by expression: a size that no tensor input has is taken from there.
    """

    def __init__(
        self, fd: FusionDefinition, device: torch.device, emulate: bool, scalars: Mapping[Any, Node]
    ) -> None:
        self.fd = fd
        self.ops = fd.ops
        self.emulate = emulate
        self.device = device
        self.inputs: list[Node] = []
        self._scalars = scalars
        self._values: dict[Node, Val] = {}
        self._parts: dict[Node, tuple[Val, ...]] = {}
        self._sizes: dict[Any, Val] = {}

    def define_input(self, node: Node) -> None:
        """Declare `node`, a tensor that is made outside of the region."""
        fake = node.meta["val"]
        sizes = [size if isinstance(size, int) else -1 for size in fake.shape]
        is_cpu = fake.device.type == "cpu" and self.device.type != "cpu"
        tv = self.fd.define_tensor(sizes, False, DTYPES[fake.dtype], is_cpu)
        self.inputs.append(node)
        self._values[node] = tv
        for dim, size in enumerate(fake.shape):
            if not isinstance(size, int):
                self._sizes.setdefault(size.node.expr, self.ops.size(tv, dim))

    def set_value(self, node: Node, val: Any) -> None:
        """Record what `node` computes, in the dtype in which it is held; a tuple as it is."""
        if isinstance(val, tuple):
            self._parts[node] = val
            return
        dtype = node.meta["val"].dtype
        if dtype in HALF and not self.emulate:
            # A value that is rounded already stays as it is.
            self._values[node] = (
                val if val.dtype_ is DTYPES[dtype] else self.cast(val, DataType.Float)
            )
        else:
            self._values[node] = self.cast(val, DTYPES[dtype])

    def cast(self, val: Any, dtype: DataType) -> Any:
        """A Val in `dtype`; itself if it has it."""
        return val if val.dtype_ is dtype else self.ops.cast(val, dtype)

    def part(self, node: Any, index: Any) -> Val:
        """One result of a node that has several."""
        result: Val = self._parts[node][index]
        return result

    def held_dtype(self, dtype: torch.dtype) -> DataType:
        """The dtype in which values of `dtype` are held between ops."""
        return DTYPES[dtype] if self.emulate else compute_dtype(dtype)

    def held(self, node: Node) -> TensorView:
        """The value of tensor node `node` as it is held."""
        value = self._values[node]
        assert isinstance(value, TensorView)
        return value

    def tensor(self, node: Any, dtype: torch.dtype | None = None) -> TensorView:
        """The value of tensor node `node` in `dtype`, or in that which arithmetic on it uses."""
        wanted = node.meta["val"].dtype if dtype is None else dtype
        value = self.cast(self._values[node], compute_dtype(wanted))
        assert isinstance(value, TensorView)
        return value

    def operand(self, arg: Any, dtype: torch.dtype) -> Any:
        """An operand of a pointwise op that is evaluated in `dtype`: a Val or a Python number."""
        if isinstance(arg, Node):
            return self.tensor(arg, dtype) if is_tensor(arg) else self.scalar(arg)
        if dtype is torch.bool:
            return self.fd.define_scalar(bool(arg), DataType.Bool)
        return float(arg) if dtype.is_floating_point else int(arg)

    def rounded(self, arg: Any, dtype: torch.dtype) -> Any:
        """As `operand`, with a half-precision value rounded.

        What is compared must be what is stored: the gradient of a maximum looks for the elements
        that equal it.
        """
        if is_tensor(arg) and arg.meta["val"].dtype in HALF:
            stored = self.cast(self._values[arg], DTYPES[arg.meta["val"].dtype])
            return self.cast(stored, compute_dtype(dtype))
        return self.operand(arg, dtype)

    def scalar(self, node: Node) -> Val:
        """A symbolic number, as a Val."""
        value = node.meta["val"]
        if isinstance(value, torch.SymInt):
            size = self.size(value)
            return size if isinstance(size, Val) else self.fd.define_scalar(size, DataType.Int)
        if node not in self._values:
            if node.op != "placeholder":
                raise Unmapped(f"the number {node} is computed in the graph")
            kind = DataType.Bool if isinstance(value, (bool, torch.SymBool)) else DataType.Double
            self._values[node] = self.fd.define_scalar(kind)
            self.inputs.append(node)
        return self._values[node]

    def size(self, size: Any) -> int | Val:
        """A size of the traced graph: an int, or the Val of a symbolic one."""
        if isinstance(size, Node):
            size = size.meta["val"]
        return int(size) if isinstance(size, int) else self._evaluated(size.node.expr)

    def shape(self, node: Node) -> list[int | Val]:
        """The sizes of what `node` computes."""
        return [self.size(size) for size in node.meta["val"].shape]

    def _evaluated(self, expr: Any) -> int | Val:
        """The value of a SymPy expression over sizes."""
        if expr.is_Integer:
            return int(expr)
        if expr in self._sizes:
            return self._sizes[expr]
        if expr in self._scalars:
            node = self._scalars[expr]
            self._sizes[expr] = self.fd.define_scalar(DataType.Int)
            self.inputs.append(node)
            return self._sizes[expr]
        combine = self._combination(expr)
        if combine is None:
            raise Unmapped(f"the size {expr} follows from no input of the region")
        made = reduce(combine, [self._evaluated(part) for part in expr.args])
        if isinstance(made, Val):
            self._sizes[expr] = made
        return made

    def _combination(self, expr: Any) -> Callable[[Any, Any], Any] | None:
        """The function that folds the arguments of `expr`."""
        if expr.is_Mul or expr.is_Add:
            on_numbers = operator.mul if expr.is_Mul else operator.add
            on_vals = self.ops.mul if expr.is_Mul else self.ops.add
        elif type(expr).__name__ in ("FloorDiv", "CleanDiv"):
            on_numbers, on_vals = operator.floordiv, self.ops.div
        else:
            return None

        def combine(a: Any, b: Any) -> Any:
            return on_numbers(a, b) if isinstance(a, int) and isinstance(b, int) else on_vals(a, b)

        return combine


def is_tensor(arg: Any) -> bool:
    """Whether `arg` is a node that computes one tensor."""
    return isinstance(arg, Node) and isinstance(arg.meta.get("val"), torch.Tensor)


def compute_dtype(dtype: torch.dtype) -> DataType:
    """The dtype in which arithmetic on `dtype` is done."""
    return DataType.Float if dtype in HALF else DTYPES[dtype]


def argument(node: Node, position: int, name: str, default: Any = None) -> Any:
    """An argument of an ATen call, wherever it stands."""
    if position < len(node.args):
        return node.args[position]
    return node.kwargs.get(name, default)
