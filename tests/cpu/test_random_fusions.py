"""Random graphs against the reference, with an error bound that is carried along as they are
built.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from fuser_direct import DataType, FusionDefinition
from fuser_direct.dtypes import INFO
from fuser_direct.ops.reference import evaluate, to_reference
from tests.support import LAYOUTS, Maker, fusion_of, torch_dtype

FLOAT, DOUBLE, HALF, BF16 = DataType.Float, DataType.Double, DataType.Half, DataType.BFloat16
INT, INT32, BOOL = DataType.Int, DataType.Int32, DataType.Bool

_EPSILON = {DOUBLE: 2.0**-50, FLOAT: 2.0**-22, HALF: 2.0**-10, BF16: 2.0**-7}
# Values stay below this, and errors below the other: what would pass them is not built.
_LARGEST, _WORST = 1e6, 1e-2
# Elements of the largest tensor.
_MOST = 200_000

_EXACT_UNARY = ("neg", "abs", "relu", "set", "segment_set")
_SMOOTH_UNARY = ("tanh", "sigmoid", "sin", "cos", "erf", "atan")
_STEPPED_UNARY = ("floor", "ceil", "trunc", "round", "sign")
_BINARY = ("add", "sub", "mul", "maximum", "minimum")


@dataclass(frozen=True, slots=True)
class _Value:
    """A tensor of the graph: its shape, which dims are broadcasts, and bounds of magnitude and
    error.
    """

    tv: Any
    shape: tuple[int, ...]
    broadcast: tuple[bool, ...]
    size: float
    error: float = 0.0

    @property
    def dtype(self) -> DataType:
        dtype: DataType = self.tv.dtype()
        return dtype

    @property
    def is_float(self) -> bool:
        return INFO[self.dtype].kind == "float"


class _Graph:
    """Builds one fusion from drawn integers; a step that doesn't fit is left out."""

    def __init__(self, fd: FusionDefinition, draw: Any) -> None:
        self._fd = fd
        self._draw = draw
        self.values: list[_Value] = []
        self.inputs: list[torch.Tensor] = []

    def pick(self, count: int) -> int:
        """A number below `count`."""
        number: int = self._draw(st.integers(0, count - 1))
        return number

    def add_input(self, base: tuple[int, ...], maker: Maker) -> None:
        """An input whose dims are those of `base` or 1, in some layout and dtype."""
        shape = tuple(1 if self.pick(5) == 0 else extent for extent in base)
        dtype = (FLOAT, FLOAT, BF16, HALF, DOUBLE, INT32, INT)[self.pick(7)]
        layout = list(LAYOUTS)[self.pick(len(LAYOUTS))] if len(shape) > 1 else "contiguous"
        tensor = maker.laid_out(shape, layout, dtype)
        tv = self._fd.from_pytorch(tensor)
        self.inputs.append(tensor)
        broadcast = tuple(axis.is_broadcast() and axis.expanded is None for axis in tv.logical)
        self.values.append(_Value(tv, shape, broadcast, 9.0))

    def step(self) -> None:
        """One more op."""
        value = self.values[-1 - self.pick(min(4, len(self.values)))]
        kind = self.pick(12)
        if kind < 2:
            made = self._unary(value)
        elif kind < 5:
            made = self._binary(value)
        elif kind == 5:
            made = self._cast(value)
        elif kind == 6:
            made = self._reduce(value)
        elif kind == 7:
            made = self._permute(value)
        elif kind == 8:
            made = self._reshape(value)
        elif kind == 9:
            made = self._where(value)
        else:
            made = self._move(value)
        if made is not None and made.size <= _LARGEST and made.error <= _WORST:
            self.values.append(made)

    def _made(self, value: _Value, tv: Any, size: float, error: float) -> _Value:
        """A result of value's shape; half types round it, float arithmetic is counted by the
        caller.
        """
        rounding = _EPSILON[tv.dtype()] * size if INFO[tv.dtype()].is_half else 0.0
        return _Value(tv, value.shape, value.broadcast, size, error + rounding if error else 0.0)

    def _unary(self, value: _Value) -> _Value | None:
        ops = self._fd.ops
        group = self.pick(3)
        if group == 0 or not value.is_float:
            tv = getattr(ops, _EXACT_UNARY[self.pick(len(_EXACT_UNARY))])(value.tv)
            return self._made(value, tv, value.size, value.error)
        if group == 1:
            tv = getattr(ops, _SMOOTH_UNARY[self.pick(len(_SMOOTH_UNARY))])(value.tv)
            # No slope of these is above 2/sqrt(pi); large arguments of sin and cos lose what they
            # have.
            error = 1.13 * value.error + 4 * _EPSILON[tv.dtype()] * max(1.0, value.size)
            return self._made(value, tv, 1.6, error)
        if value.error:
            return None
        tv = getattr(ops, _STEPPED_UNARY[self.pick(len(_STEPPED_UNARY))])(value.tv)
        return self._made(value, tv, value.size + 1, 0.0)

    def _partner(self, value: _Value) -> _Value | None:
        """A value that broadcasts with `value`."""
        fitting = [
            other
            for other in self.values
            if len(other.shape) == len(value.shape)
            and all(
                a == b or p or q
                for a, b, p, q in zip(
                    value.shape, other.shape, value.broadcast, other.broadcast, strict=True
                )
            )
        ]
        small = [other for other in fitting if np.prod(self._joined(value, other)[0]) <= _MOST]
        return small[self.pick(len(small))] if small else None

    @staticmethod
    def _joined(a: _Value, b: _Value) -> tuple[tuple[int, ...], tuple[bool, ...]]:
        shape = tuple(n if p else m for m, n, p in zip(a.shape, b.shape, a.broadcast, strict=True))
        return shape, tuple(p and q for p, q in zip(a.broadcast, b.broadcast, strict=True))

    def _binary(self, a: _Value) -> _Value | None:
        b = self._partner(a)
        if b is None:
            return None
        name = _BINARY[self.pick(len(_BINARY))]
        product = a.size * b.size
        size = product if name == "mul" else a.size + b.size
        if size > _LARGEST:
            return None
        tv = getattr(self._fd.ops, name)(a.tv, b.tv)
        spread = a.error * b.size + b.error * a.size if name == "mul" else a.error + b.error
        error = spread
        if INFO[tv.dtype()].kind == "float" and name in ("add", "sub", "mul"):
            error += _EPSILON[tv.dtype()] * size
        shape, broadcast = self._joined(a, b)
        return _Value(tv, shape, broadcast, size, error)

    def _where(self, a: _Value) -> _Value | None:
        b = self._partner(a)
        if b is None or a.error or b.error:
            return None
        compared = getattr(self._fd.ops, ("lt", "ge", "eq", "ne")[self.pick(4)])(a.tv, b.tv)
        tv = self._fd.ops.where(compared, a.tv, b.tv)
        shape, broadcast = self._joined(a, b)
        return _Value(tv, shape, broadcast, max(a.size, b.size), 0.0)

    def _cast(self, value: _Value) -> _Value | None:
        target = (FLOAT, DOUBLE, BF16, HALF, INT32, INT)[self.pick(6)]
        to_int = INFO[target].kind == "int"
        if (to_int and value.error) or (target is HALF and value.size > 60000):
            return None
        tv = self._fd.ops.cast(value.tv, target)
        error = value.error
        if value.error and not to_int:
            error += _EPSILON[target] * value.size
        return _Value(tv, value.shape, value.broadcast, value.size, error)

    def _reduce(self, value: _Value) -> _Value | None:
        rank = len(value.shape)
        dims = [d for d in range(rank) if self.pick(2)] or [self.pick(rank)] if rank else []
        if not dims:
            return None
        keepdim = bool(self.pick(2))
        name = ("sum", "sum", "max", "min")[self.pick(4)]
        count = int(np.prod([value.shape[d] for d in dims]))
        if value.size * count > _LARGEST:
            return None
        tv = getattr(self._fd.ops, name)(value.tv, dims=dims, keepdim=keepdim)
        size, error = value.size, value.error
        if name == "sum":
            size, error = value.size * count, value.error * count
            if value.is_float:
                error += _EPSILON[tv.dtype()] * size + _EPSILON[FLOAT] * size
        keep = [d for d in range(rank) if d not in dims]
        if keepdim:
            shape = tuple(1 if d in dims else n for d, n in enumerate(value.shape))
            flags = tuple(d in dims or value.broadcast[d] for d in range(rank))
            return _Value(tv, shape, flags, size, error)
        shape = tuple(value.shape[d] for d in keep)
        return _Value(tv, shape, tuple(value.broadcast[d] for d in keep), size, error)

    def _permute(self, value: _Value) -> _Value | None:
        rank = len(value.shape)
        if rank < 2:
            return None
        order = list(self._draw(st.permutations(range(rank))))
        tv = self._fd.ops.permute(value.tv, order)
        shape = tuple(value.shape[d] for d in order)
        flags = tuple(value.broadcast[d] for d in order)
        return _Value(tv, shape, flags, value.size, value.error)

    def _reshape(self, value: _Value) -> _Value | None:
        """A new broadcast dim, or one squeezed away."""
        rank = len(value.shape)
        removable = [d for d in range(rank) if value.broadcast[d]]
        if removable and self.pick(2):
            dim = removable[self.pick(len(removable))]
            tv = self._fd.ops.squeeze(value.tv, [dim])
            shape = (*value.shape[:dim], *value.shape[dim + 1 :])
            flags = (*value.broadcast[:dim], *value.broadcast[dim + 1 :])
            return _Value(tv, shape, flags, value.size, value.error)
        if rank >= 4:
            return None
        dim = self.pick(rank + 1)
        tv = self._fd.ops.broadcast(value.tv, [d == dim for d in range(rank + 1)])
        shape = (*value.shape[:dim], 1, *value.shape[dim:])
        flags = (*value.broadcast[:dim], True, *value.broadcast[dim:])
        return _Value(tv, shape, flags, value.size, value.error)

    def _move(self, value: _Value) -> _Value | None:
        """Elements at other positions; sizes of 1, which may broadcast, are left alone."""
        if not value.shape or min(value.shape) < 2:
            return None
        dim = self.pick(len(value.shape))
        kind = self.pick(4)
        if kind == 0:
            return self._cut(value, dim)
        if kind == 1:
            return self._padded(value, dim)
        if kind == 2 and np.prod(value.shape) < _MOST / 3:
            other = self._partner(value)
            if other is None or other.shape != value.shape or other.dtype is not value.dtype:
                other = value
            tv = self._fd.ops.cat([value.tv, other.tv, value.tv], dim)
            size, error = max(value.size, other.size), max(value.error, other.error)
            return self._moved(value, tv, dim, 3 * value.shape[dim], size, error)
        return self._merged(value, dim)

    def _moved(
        self, value: _Value, tv: Any, dim: int, extent: int, size: float, error: float
    ) -> _Value:
        shape = (*value.shape[:dim], extent, *value.shape[dim + 1 :])
        return _Value(tv, shape, value.broadcast, size, error)

    def _cut(self, value: _Value, dim: int) -> _Value:
        extent = value.shape[dim]
        start = self.pick(extent - 1)
        stop = start + 2 + self.pick(extent - start - 1)
        starts = [start if d == dim else 0 for d in range(len(value.shape))]
        stops = [stop if d == dim else n for d, n in enumerate(value.shape)]
        tv = self._fd.ops.slice(value.tv, starts, stops)
        return self._moved(value, tv, dim, stop - start, value.size, value.error)

    def _padded(self, value: _Value, dim: int) -> _Value:
        left, right = self.pick(4) - min(1, value.shape[dim] - 2), self.pick(4)
        rank = len(value.shape)
        widths = [0] * (2 * (rank - 1 - dim)) + [left, right]
        fill = {"float": 0.5, "int": 3, "bool": False}[INFO[value.dtype].kind]
        tv = self._fd.ops.pad(value.tv, widths, fill)
        return self._moved(value, tv, dim, value.shape[dim] + left + right, value.size, value.error)

    def _merged(self, value: _Value, dim: int) -> _Value:
        """Two dims made one, or one of even extent made two."""
        shape = value.shape
        if dim + 1 < len(shape):
            new = (*shape[:dim], shape[dim] * shape[dim + 1], *shape[dim + 2 :])
        elif shape[dim] % 2 == 0 and shape[dim] > 2 and len(shape) < 5:
            new = (*shape[:dim], 2, shape[dim] // 2, *shape[dim + 1 :])
        else:
            new = shape[::-1]
        tv = self._fd.ops.reshape(value.tv, list(new))
        return _Value(tv, new, (False,) * len(new), value.size, value.error)


def _describe(inputs: list[torch.Tensor]) -> str:
    """Statements that make inputs of these kinds."""
    lines = [f"as_strided({tuple(t.shape)}, {t.stride()}) of {t.dtype}" for t in inputs]
    return "\n".join(lines)


@settings(
    max_examples=120,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
    print_blob=True,
)
@given(st.data())
def test_random_fusion_agrees_with_reference(data: st.DataObject) -> None:
    draw = data.draw
    base = tuple(draw(st.lists(st.sampled_from([2, 3, 5, 8, 17, 33]), min_size=1, max_size=3)))
    maker = Maker("cpu", draw(st.integers(0, 1000)))
    with FusionDefinition() as fd:
        graph = _Graph(fd, draw)
        for _ in range(1 + graph.pick(3)):
            graph.add_input(base, maker)
        count = len(graph.values)
        for _ in range(2 + graph.pick(19)):
            graph.step()
        made = graph.values[count:] or graph.values[:1]
        chosen = [made[-1], *(made[graph.pick(len(made))] for _ in range(graph.pick(3)))]
        for value in chosen:
            fd.add_output(value.tv)
    note(f"{fd!r}\n{_describe(graph.inputs)}")
    expected = evaluate(fusion_of(fd), graph.inputs)
    outputs = fd.execute(graph.inputs)
    for value, out, want in zip(chosen, outputs, expected, strict=True):
        assert tuple(out.shape) == value.shape == want.shape
        assert out.dtype == torch_dtype(value.dtype)
        got = to_reference(out, value.dtype)
        if not value.is_float:
            np.testing.assert_array_equal(got, want)
            continue
        limit = 2 * value.error + _EPSILON[value.dtype] * np.abs(want)
        worst = np.max(np.abs(got - want) - limit, initial=-np.inf)
        assert worst <= 0, f"error above its bound {2 * value.error:.3g} by {worst:.3g}"
