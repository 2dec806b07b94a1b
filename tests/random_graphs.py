"""Random fusions whose results are known to the bit.

Inputs hold small integers, in whatever dtype, and every op keeps them exact (a bound on the
magnitude is carried along), so results are compared for equality: an element read from the wrong
place can't hide in a tolerance. Smooth functions (tanh) may end a chain; what moves their results
only is held to a few units in the last place.

A graph is built from numbers below given counts, which hypothesis, a seeded generator or a
recorded list may supply; a step that doesn't fit is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from fuser_direct import DataType, FusionDefinition
from fuser_direct.dtypes import INFO
from tests.support import torch_dtype

FLOAT, DOUBLE, HALF, BF16 = DataType.Float, DataType.Double, DataType.Half, DataType.BFloat16
INT, INT32, BOOL = DataType.Int, DataType.Int32, DataType.Bool

Pick = Callable[[int], int]

_EXTENTS = (0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 6, 8, 9)
# One fusion in six is large enough for tiles, splits and vectors.
_LARGE_EXTENTS = (1, 2, 7, 16, 33, 64, 130, 257, 1025)
_MOST_ELEMS, _MOST_LARGE_ELEMS = 3000, 80_000
# Every integer up to 2**24 is exact in float32, and to 2048 in half; int32 is farther.
_LARGEST = float(2**22)
_HALF_LARGEST = {HALF: 2048.0, BF16: 256.0}


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor of the graph: its runtime shape, a bound on its magnitude, and whether its values
    are known to the bit (all derived from integers)."""

    tv: Any
    shape: tuple[int, ...]
    size: float
    is_exact: bool = True

    @property
    def dtype(self) -> DataType:
        dtype: DataType = self.tv.dtype()
        return dtype

    @property
    def kind(self) -> str:
        return INFO[self.dtype].kind

    def broadcasts(self, dim: int) -> bool:
        """Whether a dimension has extent 1 in a way that matches any other extent."""
        axis = self.tv.logical[dim]
        return self.shape[dim] == 1 and axis.kind in ("b", "?") and axis.expanded is None


def _count(shape: Sequence[int]) -> int:
    return int(np.prod(shape, dtype=np.int64))


class Graph:
    """One fusion in the making, with its inputs."""

    def __init__(self, fd: FusionDefinition, pick: Pick, device: str) -> None:
        self.fd = fd
        self.pick = pick
        self.device = device
        self.values: list[Value] = []
        self.inputs: list[Any] = []
        # Position of the input that an output is written into.
        self.updated: int | None = None
        is_large = pick(6) == 5
        self.extents = _LARGE_EXTENTS if is_large else _EXTENTS
        self.most_elems = _MOST_LARGE_ELEMS if is_large else _MOST_ELEMS
        self.base = tuple(self._one(self.extents) for _ in range(pick(4) + 1))
        if pick(3) == 0:
            self.base = (*self.base[:2], self.base[0])

    def _one(self, choices: Sequence[Any]) -> Any:
        return choices[self.pick(len(choices))]

    # --- inputs ---

    def add_input(self) -> None:
        """A tensor over some of the base's extents, in some dtype, layout and declaration."""
        shape = tuple(1 if self.pick(6) == 0 else n for n in self.base)
        if self.pick(4) == 0:
            shape = tuple(self._one(self.extents) for _ in range(self.pick(4) + 1))
        while _count(shape) > self.most_elems:
            shape = shape[1:]
        dtype = self._one((FLOAT, FLOAT, BF16, HALF, DOUBLE, INT32, INT, BOOL))
        tensor = self._laid_out(shape, dtype)
        self.inputs.append(tensor)
        how = self.pick(4)
        if how == 0:
            tv = self.fd.from_pytorch(tensor, static_sizes=True)
        elif how == 1 and 0 not in tensor.stride():
            tv = self.fd.define_tensor([-1] * len(shape), False, dtype)
        else:
            tv = self.fd.from_pytorch(tensor)
        self.values.append(Value(tv, shape, 1.0 if dtype is BOOL else 4.0))

    def _laid_out(self, shape: tuple[int, ...], dtype: DataType) -> torch.Tensor:
        rng = np.random.default_rng(self.pick(1000))
        layout = self.pick(6)
        wide = shape
        if layout == 1 and shape:
            wide = (*shape[:-1], shape[-1] + 3)
        elif layout == 2 and shape:
            wide = (*shape[:-1], shape[-1] * 2)
        elif layout == 3:
            wide = shape[::-1]
        elif layout == 4 and shape and self.pick(2):
            dim = self.pick(len(shape))
            wide = (*shape[:dim], 1, *shape[dim + 1 :])
        low, high = (0, 2) if dtype is BOOL else (-4, 5)
        array = torch.from_numpy(np.asarray(rng.integers(low, high, wide)).reshape(wide))
        tensor = torch.empty(wide, dtype=torch_dtype(dtype)).copy_(array).to(self.device)
        if layout == 1 and shape:
            return tensor[..., 1 : 1 + shape[-1]]
        if layout == 2 and shape:
            return tensor[..., ::2]
        if layout == 3:
            return tensor.permute(*range(len(shape) - 1, -1, -1)) if shape else tensor
        return tensor.expand(shape) if wide != shape else tensor

    def update_input(self, made: Sequence[Value], outputs: list[Value], number: int) -> None:
        """Write some result into an input, and return it too."""
        target = self.values[number]
        tensor = next(t for t, v in zip(self._tensors(), self.values, strict=False) if v is target)
        fitting = [
            v
            for v in made
            if v.shape == target.shape
            and v.dtype is target.dtype
            and v.is_exact
            and v.tv.definition() is not None
            and not any(v.tv is o.tv for o in (*outputs, *self.values[: number + 1]))
        ]
        if not fitting or any(o.tv is target.tv for o in outputs) or 0 in tensor.stride():
            return
        value = self._one(fitting)
        self.fd.add_output(value.tv, target.tv)
        self.fd.add_output(value.tv)
        outputs.append(value)
        self.updated = next(i for i, given in enumerate(self.inputs) if given is tensor)

    def _tensors(self) -> list[torch.Tensor]:
        return [value for value in self.inputs if isinstance(value, torch.Tensor)]

    # --- steps ---

    def step(self) -> None:
        """One more op, if what is drawn fits."""
        value = self.values[-1 - self.pick(min(5, len(self.values)))]
        made = self._one(_STEPS)(self, value)
        if made is None or made.size > _LARGEST or _count(made.shape) > self.most_elems:
            return
        if made.is_exact and made.size > _HALF_LARGEST.get(made.dtype, _LARGEST) * 64:
            return
        if len(made.shape) <= 6:
            self.values.append(made)

    def unary(self, x: Value) -> Value | None:
        if x.dtype is BOOL:
            return replace(x, tv=self.fd.ops.logical_not(x.tv))
        if not x.is_exact:
            name = self._one(("neg", "abs", "set"))
            return replace(x, tv=getattr(self.fd.ops, name)(x.tv))
        name = self._one(("neg", "abs", "relu", "sign", "set", "segment_set", "floor", "round"))
        if x.kind == "int" and name in ("floor", "round"):
            return None
        return replace(x, tv=getattr(self.fd.ops, name)(x.tv))

    def smooth(self, x: Value) -> Value | None:
        if x.kind != "float" or not x.is_exact:
            return None
        tv = getattr(self.fd.ops, self._one(("tanh", "atan", "sigmoid", "erf")))(x.tv)
        return Value(tv, x.shape, 1.6, is_exact=False)

    def _partner(self, x: Value) -> Value | None:
        fitting = [y for y in self.values if self._joined(x, y) is not None]
        return self._one(fitting) if fitting else None

    def _joined(self, x: Value, y: Value) -> tuple[int, ...] | None:
        """The shape of x and y together, or None if they don't broadcast."""
        rank = max(len(x.shape), len(y.shape))
        shape = []
        for back in range(rank, 0, -1):
            sides = [(v, len(v.shape) - back) for v in (x, y)]
            here = [(v.shape[d], v.broadcasts(d)) for v, d in sides if d >= 0]
            fixed = {n for n, loose in here if not loose}
            if len(fixed) > 1:
                return None
            shape.append(fixed.pop() if fixed else 1)
        return tuple(shape) if _count(shape) <= self.most_elems else None

    def binary(self, x: Value) -> Value | None:
        y = self._partner(x)
        if y is None or not (x.is_exact and y.is_exact):
            return None
        shape = self._joined(x, y)
        assert shape is not None
        ops = self.fd.ops
        if BOOL in (x.dtype, y.dtype):
            if x.dtype is not y.dtype:
                return None
            name = self._one(("logical_and", "logical_or", "bitwise_xor", "eq"))
            return Value(getattr(ops, name)(x.tv, y.tv), shape, 1.0)
        name = self._one(("add", "sub", "mul", "maximum", "minimum", "lt", "ge", "eq", "ne"))
        size = x.size * y.size if name == "mul" else x.size + y.size
        if size > _LARGEST:
            return None
        tv = getattr(ops, name)(x.tv, y.tv)
        return Value(tv, shape, 1.0 if tv.dtype() is BOOL else size)

    def scalar(self, x: Value) -> Value | None:
        if x.dtype is BOOL or not x.is_exact:
            return None
        number = self.pick(7) - 3
        name = self._one(("add", "mul", "maximum"))
        size = x.size * 3 if name == "mul" else x.size + 3
        if size > _LARGEST:
            return None
        operand: Any = float(number) if x.kind == "float" else number
        return Value(getattr(self.fd.ops, name)(x.tv, operand), x.shape, size)

    def where(self, x: Value) -> Value | None:
        y = self._partner(x)
        chooser = next((v for v in reversed(self.values) if v.dtype is BOOL), None)
        if y is None or chooser is None or BOOL in (x.dtype, y.dtype):
            return None
        if not (x.is_exact and y.is_exact):
            return None
        tv = self.fd.ops.where
        shape = self._joined(x, y)
        if shape is None or len(shape) != len(chooser.shape):
            return None
        for d, n in enumerate(shape):
            loose = all(
                len(v.shape) < len(shape) - d or v.broadcasts(d - len(shape) + len(v.shape))
                for v in (x, y)
            )
            if chooser.shape[d] != n and not chooser.broadcasts(d) and not loose:
                return None
        whole = tuple(
            max(n, m) if 0 not in (n, m) else 0 for n, m in zip(shape, chooser.shape, strict=True)
        )
        if _count(whole) > self.most_elems:
            return None
        return Value(tv(chooser.tv, x.tv, y.tv), whole, max(x.size, y.size))

    def cast(self, x: Value) -> Value | None:
        target = self._one((FLOAT, DOUBLE, BF16, HALF, INT32, INT, BOOL))
        if not x.is_exact and INFO[target].kind != "float":
            return None
        if target is HALF and x.size > 30000:
            return None
        # Rounding to a half type moves an integer to another one.
        return replace(
            x, tv=self.fd.ops.cast(x.tv, target), size=1.0 if target is BOOL else x.size * 1.01
        )

    def reduce(self, x: Value) -> Value | None:
        rank = len(x.shape)
        dims = [d for d in range(rank) if self.pick(2)] or ([self.pick(rank)] if rank else [])
        if not dims or not x.is_exact:
            return None
        keepdim = bool(self.pick(2))
        name = self._one(("sum", "sum", "max", "min"))
        count = _count([x.shape[d] for d in dims])
        if x.size * max(count, 1) > _LARGEST or (name != "sum" and count == 0):
            return None
        if x.dtype is HALF and x.size * count > 30000:
            return None
        tv = getattr(self.fd.ops, name)(x.tv, dims=dims, keepdim=keepdim)
        size = x.size * max(count, 1) if name == "sum" else x.size
        kept = [1 if d in dims else n for d, n in enumerate(x.shape) if keepdim or d not in dims]
        return Value(tv, tuple(kept), size * 1.01)

    def center(self, x: Value) -> Value | None:
        """x less its sum or extreme along one dim."""
        if not x.shape or not x.is_exact or x.dtype is BOOL or INFO[x.dtype].is_half:
            return None
        dim = self.pick(len(x.shape))
        name = self._one(("sum", "max"))
        size = x.size * (1 + x.shape[dim])
        if x.shape[dim] == 0 or size > _LARGEST:
            return None
        total = getattr(self.fd.ops, name)(x.tv, dims=[dim], keepdim=True)
        return replace(x, tv=self.fd.ops.sub(x.tv, total), size=size)

    def mirror(self, x: Value) -> Value | None:
        """x combined with its transpose."""
        rank = len(x.shape)
        pairs = [
            (a, b)
            for a in range(rank)
            for b in range(a)
            if x.shape[a] == x.shape[b] and x.broadcasts(a) == x.broadcasts(b)
        ]
        if not pairs or not x.is_exact or x.dtype is BOOL:
            return None
        a, b = self._one(pairs)
        order = [b if d == a else a if d == b else d for d in range(rank)]
        turned = self.fd.ops.permute(x.tv, order)
        tv = getattr(self.fd.ops, self._one(("add", "maximum")))(x.tv, turned)
        return replace(x, tv=tv, size=2 * x.size)

    def permute(self, x: Value) -> Value | None:
        if len(x.shape) < 2:
            return None
        order = list(range(len(x.shape)))
        a, b = self.pick(len(order)), self.pick(len(order))
        order[a], order[b] = order[b], order[a]
        if self.pick(3) == 0:
            order = order[1:] + order[:1]
        return replace(
            x, tv=self.fd.ops.permute(x.tv, order), shape=tuple(x.shape[d] for d in order)
        )

    def stride_order(self, x: Value) -> Value | None:
        if len(x.shape) < 2:
            return None
        order = list(range(len(x.shape)))
        turn = self.pick(len(order))
        return replace(x, tv=self.fd.ops.stride_order(x.tv, order[turn:] + order[:turn]))

    def broadcast(self, x: Value) -> Value | None:
        rank = len(x.shape)
        if rank >= 5:
            return None
        at = self.pick(rank + 1)
        tv = self.fd.ops.broadcast(x.tv, [d == at for d in range(rank + 1)])
        return replace(x, tv=tv, shape=(*x.shape[:at], 1, *x.shape[at:]))

    def squeeze(self, x: Value) -> Value | None:
        dims = [d for d in range(len(x.shape)) if x.broadcasts(d)]
        if not dims:
            return None
        dim = self._one(dims)
        return replace(
            x, tv=self.fd.ops.squeeze(x.tv, [dim]), shape=(*x.shape[:dim], *x.shape[dim + 1 :])
        )

    def expand(self, x: Value) -> Value | None:
        dims = [d for d in range(len(x.shape)) if x.broadcasts(d)]
        if not dims:
            return None
        dim, extent = self._one(dims), self._one(self.extents)
        shape = [-1] * len(x.shape)
        shape[dim] = extent
        return replace(
            x,
            tv=self.fd.ops.expand(x.tv, shape),
            shape=(*x.shape[:dim], extent, *x.shape[dim + 1 :]),
        )

    def reshape(self, x: Value) -> Value | None:
        total = _count(x.shape)
        new: list[int] = []
        if total == 0:
            new = [self._one(self.extents) for _ in range(self.pick(3))]
            new.insert(self.pick(len(new) + 1), 0)
        else:
            rest = total
            for _ in range(self.pick(4)):
                divisors = [n for n in range(1, min(rest, 64) + 1) if rest % n == 0]
                new.append(self._one(divisors))
                rest //= new[-1]
            new.insert(self.pick(len(new) + 1), rest)
        if len(x.shape) >= 2 and self.pick(2):
            # Neighbours merged, the rest left alone by symbol.
            d = self.pick(len(x.shape) - 1)
            new = [*x.shape[:d], x.shape[d] * x.shape[d + 1], *x.shape[d + 2 :]]
            entries: list[Any] = list(new)
            for at in range(len(new)):
                if at != d and self.pick(2):
                    entries[at] = self.fd.ops.size(x.tv, at if at < d else at + 1)
            if 0 not in new[:d] + new[d + 1 :] and self.pick(2):
                entries[d] = -1
            return replace(x, tv=self.fd.ops.reshape(x.tv, entries), shape=tuple(new))
        entries = list(new)
        if new and 0 not in new and self.pick(2):
            entries[self.pick(len(new))] = -1
        return replace(x, tv=self.fd.ops.reshape(x.tv, entries), shape=tuple(new))

    def slice(self, x: Value) -> Value | None:
        if not x.shape:
            return None
        starts: list[Any] = [0] * len(x.shape)
        stops: list[Any] = list(x.shape)
        shape = list(x.shape)
        for dim in {self.pick(len(x.shape)) for _ in range(2)}:
            starts[dim] = self.pick(x.shape[dim] + 1)
            stops[dim] = starts[dim] + self.pick(x.shape[dim] - starts[dim] + 1)
            shape[dim] = stops[dim] - starts[dim]
            if self.pick(4) == 0:
                # Bounds that arrive with the call.
                self.inputs.append(starts[dim])
                starts[dim] = self.fd.define_scalar(INT)
        for dim, n in enumerate(x.shape):
            if stops[dim] == n and self.pick(2):
                stops[dim] = self.fd.ops.size(x.tv, dim)
        return replace(x, tv=self.fd.ops.slice(x.tv, starts, stops), shape=tuple(shape))

    def pad(self, x: Value) -> Value | None:
        if not x.shape:
            return None
        dim = self.pick(len(x.shape))
        left, right = self.pick(5) - 1, self.pick(5) - 1
        if x.shape[dim] + left + right < 0 or (x.shape[dim] < 2 and min(left, right) < 0):
            return None
        widths: list[Any] = [0] * (2 * (len(x.shape) - 1 - dim)) + [left, right]
        # A Python bool is an Int operand, which no Bool tensor takes.
        fill: Any = {"float": 2.0, "int": 3, "bool": None}[x.kind]
        tv = self.fd.ops.pad(x.tv, widths, fill if self.pick(2) else None)
        shape = (*x.shape[:dim], x.shape[dim] + left + right, *x.shape[dim + 1 :])
        return replace(x, tv=tv, shape=shape, size=max(x.size, 3.0))

    def cat(self, x: Value) -> Value | None:
        if not x.shape:
            return None
        dim = self.pick(len(x.shape))
        fitting = [
            y
            for y in self.values
            if y.dtype is x.dtype
            and len(y.shape) == len(x.shape)
            and all(
                a == b for d, (a, b) in enumerate(zip(x.shape, y.shape, strict=True)) if d != dim
            )
        ]
        pieces = [x, *(self._one(fitting) for _ in range(self.pick(3) + 1))] if fitting else [x]
        if self.pick(2):
            pieces.reverse()
        tv = self.fd.ops.cat([y.tv for y in pieces], dim)
        total = sum(y.shape[dim] for y in pieces)
        return Value(
            tv,
            (*x.shape[:dim], total, *x.shape[dim + 1 :]),
            max(y.size for y in pieces),
            all(y.is_exact for y in pieces),
        )

    # --- picking by an index ---

    def _index(self, shape: tuple[int, ...], below: int) -> Any:
        """An index tensor, an input of its own."""
        rng = np.random.default_rng(self.pick(1000))
        dtype = self._one((INT, INT32))
        array = torch.from_numpy(np.asarray(rng.integers(0, max(below, 1), shape)))
        tensor = array.to(torch_dtype(dtype)).to(self.device)
        self.inputs.append(tensor)
        return self.fd.from_pytorch(tensor)

    def index_select(self, x: Value) -> Value | None:
        if not x.shape:
            return None
        dim = self.pick(len(x.shape))
        count = self.pick(5)
        if x.shape[dim] == 0:
            return None
        tv = self.fd.ops.index_select(x.tv, self._index((count,), x.shape[dim]), dim)
        return replace(x, tv=tv, shape=(*x.shape[:dim], count, *x.shape[dim + 1 :]))

    def gather(self, x: Value) -> Value | None:
        if not x.shape or 0 in x.shape:
            return None
        dim = self.pick(len(x.shape))
        count = self.pick(4) + 1
        if self.pick(2):
            shape = tuple(count if d == dim else 1 + self.pick(n) for d, n in enumerate(x.shape))
            return replace(
                x,
                tv=self.fd.ops.gather(x.tv, self._index(shape, x.shape[dim]), dim),
                shape=shape,
            )
        shape = (*x.shape[:dim], count, *x.shape[dim + 1 :])
        index = tuple(count if d == dim else self._one((1, n)) for d, n in enumerate(x.shape))
        tv = self.fd.ops.take_along_axis(x.tv, self._index(index, x.shape[dim]), dim)
        return replace(x, tv=tv, shape=shape)

    def select(self, x: Value) -> Value | None:
        if not x.shape or 0 in x.shape:
            return None
        dim = self.pick(len(x.shape))
        self.inputs.append(self.pick(x.shape[dim]))
        tv = self.fd.ops.select(x.tv, self.fd.define_scalar(INT), dim)
        return replace(x, tv=tv, shape=(*x.shape[:dim], *x.shape[dim + 1 :]))

    # --- ops that a library does ---

    def library(self, x: Value) -> Value | None:
        if not x.shape or not x.is_exact or x.dtype is BOOL or INFO[x.dtype].is_half:
            return None
        dim = self.pick(len(x.shape))
        kind = self.pick(4)
        ops = self.fd.ops
        if kind == 0:
            size = x.size * max(x.shape[dim], 1)
            return replace(x, tv=ops.cumsum(x.tv, dim), size=size) if size <= _LARGEST else None
        if kind == 1:
            tv = ops.argsort(x.tv, dim, descending=bool(self.pick(2)), stable=True)
            return Value(tv, x.shape, float(max(x.shape[dim], 1)))
        if kind == 2 and x.shape[dim]:
            k = 1 + self.pick(x.shape[dim])
            values, _ = ops.topk(x.tv, self.fd.define_scalar(k, INT), dim, bool(self.pick(2)), True)
            return replace(x, tv=values, shape=(*x.shape[:dim], k, *x.shape[dim + 1 :]))
        if len(x.shape) != 2 or x.kind != "float":
            return None
        size = x.size * x.size * max(x.shape[1], 1)
        if size > _LARGEST:
            return None
        shape = (x.shape[0], x.shape[0])
        return Value(ops.matmul(x.tv, ops.permute(x.tv, [1, 0])), shape, size)

    def triu(self, x: Value) -> Value | None:
        if len(x.shape) < 2:
            return None
        return replace(x, tv=self.fd.ops.triu(x.tv, self.pick(5) - 2))

    def factory(self, x: Value) -> Value | None:
        if x.shape and self.pick(2):
            n = x.shape[-1]
            tv = self.fd.ops.iota(n if self.pick(2) else self.fd.ops.size(x.tv, -1), 1, 2)
            return Value(tv, (n,), 2.0 * n + 1)
        shape = tuple(self._one(self.extents[:8]) for _ in range(self.pick(3)))
        if _count(shape) > self.most_elems:
            return None
        return Value(self.fd.ops.full(list(shape), 3, self._one((FLOAT, INT, HALF))), shape, 3.0)


# What a step does; repeated entries are more likely.
_STEPS: tuple[Callable[[Graph, Value], Value | None], ...] = (
    *(Graph.unary,) * 2,
    Graph.smooth,
    *(Graph.binary,) * 6,
    Graph.scalar,
    *(Graph.where,) * 2,
    *(Graph.cast,) * 2,
    *(Graph.reduce,) * 3,
    *(Graph.permute,) * 2,
    *(Graph.center,) * 2,
    *(Graph.mirror,) * 2,
    Graph.stride_order,
    Graph.broadcast,
    Graph.squeeze,
    Graph.expand,
    *(Graph.reshape,) * 3,
    *(Graph.slice,) * 2,
    *(Graph.pad,) * 2,
    *(Graph.cat,) * 2,
    Graph.index_select,
    Graph.gather,
    Graph.select,
    Graph.library,
    Graph.triu,
    Graph.factory,
)


def build(
    pick: Pick, device: str, most_steps: int = 39
) -> tuple[FusionDefinition, Graph, list[Value]]:
    """A definition of 2 to `most_steps` + 1 ops, the graph it came from, and its outputs."""
    with FusionDefinition() as fd:
        graph = Graph(fd, pick, device)
        for _ in range(1 + pick(3)):
            graph.add_input()
        count = len(graph.values)
        for _ in range(2 + pick(most_steps)):
            graph.step()
        made = graph.values[count:] or graph.values
        # Twice the same, or an input, may come up.
        outputs = [made[-1], *(made[-1 - pick(len(made))] for _ in range(pick(6)))]
        if pick(8) == 0:
            outputs.append(graph.values[pick(count)])
        for value in outputs:
            fd.add_output(value.tv)
        if pick(4) == 0:
            graph.update_input(made, outputs, pick(count))
    return fd, graph, outputs
