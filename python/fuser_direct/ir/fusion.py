"""The fusion that the user defines, and the guard that makes one active."""

from __future__ import annotations

import sys
import threading
from collections.abc import Hashable, Sequence
from types import FrameType
from typing import Any

from fuser_direct.dtypes import INFO
from fuser_direct.enums import DataType
from fuser_direct.errors import DefinitionError, DefinitionTypeError
from fuser_direct.ir.values import (
    EXPR_CLASSES,
    BroadcastOp,
    Expr,
    IterDomain,
    Location,
    ReshapeOp,
    Scalar,
    SqueezeOp,
    Statement,
    TensorDomain,
    TensorView,
    Val,
)

__all__ = [
    "BroadcastOp",
    "Expr",
    "Fusion",
    "FusionGuard",
    "IterDomain",
    "ReshapeOp",
    "SqueezeOp",
    "Statement",
    "TensorDomain",
    "TensorView",
    "Val",
    "active_fusion",
]


class Fusion:
    """A graph of tensor and scalar expressions with inputs and outputs.

    exprs: all expressions in definition order, also those that no output needs. aliases: output
    TensorView -> the input it is written into. hidden: outputs that are only written in place and
    not returned.
    """

    def __init__(self) -> None:
        self.exprs: list[Expr] = []
        self.aliases: dict[TensorView, TensorView] = {}
        self.hidden: set[TensorView] = set()
        self._inputs: list[Val] = []
        self._outputs: list[TensorView] = []
        self._vals: list[Val] = []
        self._counts = {"tensor": 0, "scalar": 0, "axis": 0}
        self._zero: Val | None = None
        self._one: Val | None = None
        self._key: Hashable | None = None

    # --- reading ---

    def inputs(self) -> list[Val]:
        """Tensors and symbolic scalars in the order in which `execute` takes them."""
        return list(self._inputs)

    def outputs(self) -> list[TensorView]:
        """Outputs in order, hidden ones included; one that is returned twice stands here twice."""
        return list(self._outputs)

    def returned(self) -> list[TensorView]:
        """Outputs that `execute` returns, in order."""
        return [tv for tv in self._outputs if tv not in self.hidden]

    def vals(self) -> list[Val]:
        """All tensors and scalars in creation order."""
        return list(self._vals)

    def key(self) -> Hashable:
        """Canonical form of the definition; equal for equal definitions, whatever the objects.

        Holds inputs (order, dtype, symbolic or static extents, contiguity, layout), the expressions
        that outputs need (op, operands, attributes, dtypes), constants by their bits, outputs and
        aliases. Names, unused expressions and the order of independent expressions don't count.
        """
        if self._key is None:
            from fuser_direct.ir.key import canonical_key

            self._key = canonical_key(self)
        return self._key

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Fusion):
            return NotImplemented
        return self is other or self.key() == other.key()

    __hash__ = None  # type: ignore[assignment]

    def print_math(self, from_outputs_only: bool = True) -> str:
        """The fusion as math; `from_outputs_only=False` adds expressions that no output needs."""
        from fuser_direct.ir import printer

        return printer.math_text(self, from_outputs_only)

    def print_kernel(self, compile_params: Any = None) -> str:
        """CUDA text of the fusion's kernels, for dense inputs whose symbolic extents are 1024 on an
        H100: the text depends on the sizes' class, so what a call really runs is given by
        `FusionExecutorCache.get_cuda_kernel`. compile_params: accepted; they don't alter the text.
        """
        from fuser_direct.compiler.text import kernel_text

        return kernel_text(self)

    def __str__(self) -> str:
        return self.print_math()

    # --- building ---

    def add_input(self, input: Val) -> None:
        """Make a symbolic value the next input."""
        self.check_owned(input, "add_input", "input")
        if input.value is not None:
            raise DefinitionError(
                f"add_input: Immediate scalar value cannot be added as an input: {input.label}; "
                "pass it to the ops directly"
            )
        if any(known is input for known in self._inputs):
            raise DefinitionError(f"add_input: {input.label} is an input of this fusion already")
        if input.definition() is not None:
            raise DefinitionError(
                f"add_input: {input.label} is computed by this fusion, so it can't be an input"
            )
        self._inputs.append(input)
        self._key = None

    def add_output(self, output: Val, alias_input: Val | None = None) -> None:
        """Return `output` from `execute`, or write it into the buffer of input `alias_input`.

        An aliased output is returned only if it is also added plainly. A plain output may be added
        several times.
        """
        if not isinstance(output, TensorView):
            if isinstance(output, Val):
                raise DefinitionError(
                    "add_output: Non-TensorView outputs are not supported, got the scalar "
                    f"{output.label}; "
                    "fd.ops.full([], value, dtype) makes a tensor of it"
                )
            raise DefinitionTypeError(
                "add_output(): incompatible function arguments: output must be a TensorView, got "
                f"{type(output).__name__}"
            )
        self.check_owned(output, "add_output", "output")
        if alias_input is not None:
            self._add_alias(output, alias_input)
        else:
            self._add_plain(output)
        self._key = None

    def _add_plain(self, output: TensorView) -> None:
        if output in self.hidden:
            self.hidden.discard(output)
            self._outputs.remove(output)
        self._outputs.append(output)

    def _add_alias(self, output: TensorView, target: Val) -> None:
        if not isinstance(target, TensorView):
            got = target.label if isinstance(target, Val) else repr(target)
            raise DefinitionError(
                f"add_output: alias_input must be a tensor input of the fusion, got {got}"
            )
        self.check_owned(target, "add_output", "alias_input")
        if not self.is_input(target):
            raise DefinitionError(
                f"add_output: alias_input must be an input of the fusion, but {target.label} is "
                "not one"
            )
        _check_alias_fits(output, target)
        if self.is_input(output):
            from fuser_direct import ops

            with FusionGuard(self):
                output = ops.set(output)
        if output not in self._outputs:
            self._outputs.append(output)
            self.hidden.add(output)
        self.aliases[output] = target

    def is_input(self, val: Val) -> bool:
        """Whether `val` is an input of this fusion."""
        return any(val is known for known in self._inputs)

    def is_output(self, val: Val) -> bool:
        """Whether `val` is an output of this fusion, hidden or not."""
        return any(val is known for known in self._outputs)

    def check_owned(self, val: Val, op: str, argument: str) -> None:
        """Raise DefinitionError if `val`, an argument of `op`, belongs to another fusion."""
        if val.fusion is not self:
            raise DefinitionError(
                f"{op}: {argument} {val.label} belongs to another fusion than the one being "
                "defined; "
                "values can't be "
                "shared between fusions, make them an output of one and an input of the other"
            )

    def new_scalar(self, dtype: DataType, value: Scalar | None = None) -> Val:
        """A new scalar: symbolic, or the constant `value`, which must be of `dtype`'s native Python
        class.
        """
        val = Val(self, self._next("scalar"), dtype, value)
        self._vals.append(val)
        return val

    def zero(self) -> Val:
        """The Index constant 0 that all axes share."""
        if self._zero is None:
            self._zero = self.new_scalar(DataType.Index, 0)
        return self._zero

    def one(self) -> Val:
        """The Index constant 1 that all broadcast axes share."""
        if self._one is None:
            self._one = self.new_scalar(DataType.Index, 1)
        return self._one

    def new_axis(self, kind: str, extent: Val, expanded: Val | None = None) -> IterDomain:
        """A new axis. The peer counts a start of 0 for it, so the shared constant is made too."""
        self.zero()
        return IterDomain(self, self._next("axis"), kind, extent, expanded)

    def new_tensor(
        self,
        dtype: DataType,
        axes: Sequence[IterDomain],
        contiguity: Sequence[bool | None] | None = None,
        stride_order: Sequence[int] | None = None,
        is_cpu: bool = False,
    ) -> TensorView:
        """A new tensor; without `contiguity` it is dense in its stride order."""
        if contiguity is None:
            kept = [axis for axis in axes if axis.kind != "r"]
            if stride_order is not None:
                kept = [kept[dim] for dim in allocation_order(stride_order)]
            contiguity = [None if axis.kind == "b" else True for axis in kept]
        order = None if stride_order is None else tuple(stride_order)
        number = self._next("tensor")
        tv = TensorView(self, number, dtype, tuple(axes), tuple(contiguity), order, is_cpu)
        self._vals.append(tv)
        return tv

    def new_expr(
        self,
        op: str,
        ins: Sequence[Val],
        outs: Sequence[Val],
        attrs: dict[str, Any] | None = None,
        operand_dtype: DataType | None = None,
    ) -> Expr:
        """Define `outs` as `op` of `ins`. All values must be of this fusion."""
        kind = EXPR_CLASSES.get(op, Expr)
        expr = kind(self, len(self.exprs), op, ins, outs, attrs or {}, operand_dtype, _caller())
        for operand in expr.ins:
            if not operand._uses or operand._uses[-1] is not expr:
                operand._uses.append(expr)
        for result in expr.outs:
            result._definition = expr
        self.exprs.append(expr)
        self._key = None
        return expr

    def _next(self, counter: str) -> int:
        number = self._counts[counter]
        self._counts[counter] = number + 1
        return number


def allocation_order(stride_order: Sequence[int]) -> list[int]:
    """Dims from outermost to innermost: [0, 2, 1] (dim 0 is the fastest) gives [1, 2, 0]."""
    order = [0] * len(stride_order)
    for dim, rank_from_inside in enumerate(stride_order):
        order[len(stride_order) - 1 - rank_from_inside] = dim
    return order


def _check_alias_fits(output: TensorView, target: TensorView) -> None:
    """Refuse what could only write outside of, or garbage into, the input's buffer."""
    pair = f"output {output.label} can't be written into input {target.label}"
    if output.dtype_ is not target.dtype_:
        raise DefinitionError(
            f"add_output: {pair}: cast it first, fd.ops.cast(output, {target.dtype_})"
        )
    if output.ndim != target.ndim:
        raise DefinitionError(f"add_output: {pair}: their ranks differ")
    for dim, (mine, theirs) in enumerate(zip(output.logical, target.logical, strict=True)):
        have, want = mine.size().value, theirs.size().value
        if have is not None and want is not None and have != want:
            raise DefinitionError(f"add_output: {pair}: dim {dim} is {have} here and {want} there")


def _caller() -> Location | None:
    """File and line of the innermost frame outside this package."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        name = frame.f_globals.get("__name__")
        if not (isinstance(name, str) and name.startswith("fuser_direct.")):
            return frame.f_code.co_filename, frame.f_lineno
        frame = frame.f_back
    return None


class _Active(threading.local):
    """Each thread's stack of active fusions: (owner's identity, fusion)."""

    def __init__(self) -> None:
        self.stack: list[tuple[int, Fusion]] = []


_active = _Active()


class FusionGuard:
    """Makes `fusion` the one that op functions build, until `close`, the end of a `with`, or
    deletion.
    """

    def __init__(self, fusion: object) -> None:
        if not isinstance(fusion, Fusion):
            raise DefinitionTypeError(
                "FusionGuard(): incompatible function arguments: fusion must be a Fusion, got "
                f"{type(fusion).__name__}"
            )
        # The stack belongs to the thread that made the guard, wherever it is closed. It must not
        # hold the guard, or `del guard` would not end it.
        self._stack = _active.stack
        self._stack.append((id(self), fusion))

    def close(self) -> None:
        """Make the fusion active before this one active again; harmless when called twice."""
        stack = getattr(self, "_stack", None)
        if stack is None:
            return
        for position in range(len(stack) - 1, -1, -1):
            if stack[position][0] == id(self):
                del stack[position]
                break
        del self._stack

    def __enter__(self) -> FusionGuard:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


def active_fusion(op: str) -> Fusion:
    """The fusion being defined in this thread; DefinitionError, in the name of `op`, if there is
    none.
    """
    stack = _active.stack
    if not stack:
        raise DefinitionError(
            f"{op}: no fusion is being defined here; call it inside `with FusionDefinition() as "
            "fd:` "
            "or while a FusionGuard is alive"
        )
    return stack[-1][1]


def check_dtype(op: str, dtype: object, argument: str = "dtype") -> DataType:
    """`dtype` if it is an element type this version computes with; else a DefinitionError or
    DefinitionTypeError.
    """
    if not isinstance(dtype, DataType):
        raise DefinitionTypeError(
            f"{op}(): incompatible function arguments: {argument} must be a DataType, got {dtype!r}"
        )
    if dtype not in INFO:
        known = ", ".join(known.name for known in INFO)
        raise DefinitionError(f"{op}: {argument} {dtype} is not supported; supported are {known}")
    return dtype
