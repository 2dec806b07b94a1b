"""Specialization: the fusion's symbols bound to the sizes, strides and scalars of one call."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fuser_direct.compiler.arg_info import ArgInfo
from fuser_direct.compiler.arguments import CPU
from fuser_direct.compiler.segment import Plan, live_exprs
from fuser_direct.dtypes import INFO, is_floating
from fuser_direct.errors import InputError
from fuser_direct.ir.fusion import Expr, Fusion, IterDomain, TensorView, Val
from fuser_direct.lowering.graph import Constant, Memory, ScalarSource


class HostScalars:
    """Scalars of one call whose value the host knows: constants, sizes of inputs, shape scalars,
    and math on those."""

    def __init__(
        self, fusion: Fusion, args: Sequence[ArgInfo], shape_positions: Iterable[int]
    ) -> None:
        self.inputs = fusion.inputs()
        self.position = {val: i for i, val in enumerate(self.inputs)}
        self.values: dict[Val, Constant] = {}
        for position in shape_positions:
            value = args[position].value
            assert isinstance(value, (bool, int, float, complex))
            self.values[self.inputs[position]] = value
        for val, arg in zip(self.inputs, args, strict=True):
            if isinstance(val, TensorView):
                for domain, size in zip(val.logical, arg.shape, strict=True):
                    if domain.size().value is None:
                        self.values.setdefault(domain.size(), size)

    def is_runtime_input(self, value: Val) -> bool:
        """Whether a scalar is an input whose value is not part of the call's key."""
        return value in self.position and value not in self.values

    def integer(self, value: Val) -> int:
        """The value of a size or position."""
        result = self.evaluate(value)
        if isinstance(result, complex):
            raise InputError(f"execute: {value} is a size, so it must be an integer, got {result}")
        return int(result)

    def evaluate(self, value: Val) -> Constant:
        """The value of a scalar. Raises NotOnHost if it depends on an input that is not part of
        the key."""
        if value.value is not None:
            return value.value
        known = self.values.get(value)
        if known is None:
            known = self.values[value] = self._compute(value)
        return known

    def _compute(self, value: Val) -> Constant:
        expr = value.definition()
        if value in self.position or expr is None:
            raise NotOnHost(f"{value} has no value before the fusion runs")
        if expr.op == "size":
            tensor = expr.ins[0]
            assert isinstance(tensor, TensorView)
            return self.integer(tensor.logical[expr.attr("dim")].size())
        return _evaluate(expr, [self.evaluate(v) for v in expr.ins])

    def units(self, fusion: Fusion) -> frozenset[IterDomain]:
        """The symbolic axes that have extent 1 in this call, and so broadcast."""
        found: set[IterDomain] = set()
        made = [out for expr in live_exprs(fusion) for out in expr.outs]
        for tv in (*fusion.inputs(), *made):
            if isinstance(tv, TensorView):
                found.update(d for d in tv.logical if self._turns_out_unit(d))
        return frozenset(found)

    def _turns_out_unit(self, domain: IterDomain) -> bool:
        """Whether an axis that may have any extent has 1: of kind "?", or an expanded broadcast."""
        is_open = domain.kind == "?" or (
            domain.expanded is not None and domain.size().value is None
        )
        return is_open and self.integer(domain.size()) == 1


class NotOnHost(Exception):
    """A scalar depends on an input whose value is not part of the call's key."""


class Binding(Memory):
    """One call of a planned fusion: extents of all axes, layouts of all tensors in memory, and
    host scalars."""

    def __init__(
        self, plan: Plan, args: Sequence[ArgInfo], device: tuple[int, int], scalars: HostScalars
    ) -> None:
        self.plan = plan
        self.device = device
        self.scalars = scalars
        self.inputs = scalars.inputs
        self.position = scalars.position
        self.args = args
        self._strides: dict[TensorView, tuple[int, ...]] = {}
        self._alignments: dict[TensorView, int] = {}
        for val, arg in zip(self.inputs, args, strict=True):
            if isinstance(val, TensorView):
                self.place(val, tuple(arg.strides), arg.alignment)
        self._extents = self._bind_extents()

    def _bind_extents(self) -> dict[int, int]:
        """The extent of each extent class; every source must agree."""
        known: dict[int, int] = {}
        for number, sources in self.plan.axes.extent_sources().items():
            sizes = {self.integer(val) for val in sources}
            if len(sizes) > 1:
                raise InputError(self._conflict(number))
            if sizes:
                known[number] = sizes.pop()
                if known[number] < 0:
                    raise InputError(
                        f"execute: Invalid resized domain extent {known[number]}; extents are 0 or "
                        "more"
                    )
        # Inputs share an axis without sharing the symbol of its extent: compare what came.
        for val, arg in zip(self.inputs, self.args, strict=True):
            if isinstance(val, TensorView):
                for axis, size in zip(self.plan.axes.of(val), arg.shape, strict=True):
                    if axis is not None:
                        number = self.plan.axes.extent_class(axis)
                        if known.setdefault(number, size) != size:
                            raise InputError(self._conflict(number))
        return known

    def _conflict(self, number: int) -> str:
        """Which inputs disagree, in the peer's words and in the user's."""
        places = []
        for position, (val, arg) in enumerate(zip(self.inputs, self.args, strict=True)):
            if not isinstance(val, TensorView):
                continue
            for dim, axis in enumerate(self.plan.axes.of(val)):
                if axis is not None and self.plan.axes.extent_class(axis) == number:
                    places.append(f"input {position} dimension {dim} has {arg.shape[dim]}")
        return (
            "When trying to propagate constant tensor sizes through the graph a conflict was found "
            "with 2 different "
            f"sizes across dimensions that are expected to match. {'; '.join(places)}; a dimension "
            "that is to be "
            "broadcast must be declared with size 1"
        )

    # --- Memory ---

    def place(self, tensor: TensorView, strides: tuple[int, ...], alignment: int = 64) -> None:
        """Say where the elements of a tensor lie."""
        self._strides[tensor] = strides
        self._alignments[tensor] = alignment

    def strides(self, tensor: TensorView) -> tuple[int, ...]:
        return self._strides[tensor]

    def alignment(self, tensor: TensorView) -> int:
        return self._alignments[tensor]

    def in_memory(self, tensor: TensorView) -> bool:
        return tensor in self._strides

    def host_item(self, tensor: TensorView) -> int | None:
        position = self.position.get(tensor)
        if position is None or self.device[0] == CPU:
            return None
        return position if self.args[position].device_type == CPU else None

    def extent(self, axis: int) -> int:
        return self._extents[self.plan.axes.extent_class(axis)]

    def sizes(self, tensor: TensorView) -> tuple[int, ...]:
        """Extents of all dimensions of a tensor."""
        return tuple(1 if a is None else self.extent(a) for a in self.plan.axes.of(tensor))

    def integer(self, value: Val) -> int:
        return self.scalars.integer(value)

    def scalar(self, value: Val) -> ScalarSource | Constant | None:
        if self.scalars.is_runtime_input(value):
            return ScalarSource("scalar", self.position[value])
        try:
            return self.scalars.evaluate(value)
        except NotOnHost:
            return None


def _evaluate(expr: Expr, args: Sequence[Constant]) -> Constant:
    """One scalar expression on the host, by the op's reference."""
    # The reference brings in NumPy, which most calls never need.
    import numpy as np

    from fuser_direct.ops.reference import evaluate_expr, reference_class

    dtype = expr.outs[0].dtype_
    if expr.op in ("div", "mod", "remainder", "fmod") and not is_floating(dtype) and not args[1]:
        raise InputError(f"execute: integer {expr.op} by zero in scalar {expr.outs[0]}")
    arrays = [
        np.asarray(arg, reference_class(val.dtype_))
        for arg, val in zip(args, expr.ins, strict=True)
    ]
    result = evaluate_expr(expr, arrays)[0].item()
    return bool(result) if INFO[dtype].kind == "bool" else result


def row_major(sizes: Sequence[int]) -> tuple[int, ...]:
    """Strides of a dense row-major tensor, in elements."""
    strides = [1] * len(sizes)
    for dim in range(len(sizes) - 2, -1, -1):
        strides[dim] = strides[dim + 1] * max(sizes[dim + 1], 1)
    return tuple(strides)


def dense_strides(sizes: Sequence[int], order: Sequence[int]) -> tuple[int, ...]:
    """Strides of a dense tensor whose dimensions lie in memory in `order`, outermost first."""
    inner = row_major([sizes[d] for d in order])
    strides = [0] * len(sizes)
    for d, stride in zip(order, inner, strict=True):
        strides[d] = stride
    # A dimension of one element has no place in memory; give it the stride of a row-major tensor.
    following = 1
    for d in range(len(sizes) - 1, -1, -1):
        if sizes[d] == 1:
            strides[d] = following
        following = strides[d] * max(sizes[d], 1)
    return tuple(strides)
