"""Index expressions: which element of a tensor is meant at a point of the loops.

A dimension is walked by a fusion axis (an int), stays at 0 (None), or has a computed index: a
linear form of axes, a quotient and remainder of one (reshape), or the value of an index tensor
(gather). Linear forms become strides and an offset of the address; all others are computed in the
kernel.
"""

from __future__ import annotations

from collections.abc import Sequence

from fuser_direct.ir.fusion import Val
from fuser_direct.records import dataclass


@dataclass(frozen=True, slots=True)
class Linear:
    """Sum of coefficient * axis over `terms`, plus `constant`."""

    terms: tuple[tuple[int, int], ...]
    constant: int


@dataclass(frozen=True, slots=True)
class Quotient:
    """(base // divisor) % modulus; modulus 0 for none. The base is never negative."""

    base: Index
    divisor: int
    modulus: int


@dataclass(frozen=True, slots=True)
class Looked:
    """The value of an integer tensor (or scalar), itself walked by `axes` where `guard` holds."""

    value: Val
    axes: IndexMap
    guard: Guard


@dataclass(frozen=True, slots=True)
class Total:
    """Sum of weight * index over `parts`, where some index is computed; plus `constant`."""

    parts: tuple[tuple[Index, int], ...]
    constant: int


Index = int | Linear | Quotient | Looked | Total | None
IndexMap = tuple[Index, ...]
# Conditions 0 <= index < extent, all of which must hold for an element to exist.
Guard = tuple[tuple[Index, int], ...]


def shift(index: Index, by: int) -> Index:
    """index + by."""
    return index if by == 0 else combine(((index, 1),), by)


def combine(parts: Sequence[tuple[Index, int]], constant: int = 0) -> Index:
    """Sum of weight * index over `parts`, plus `constant`, in its simplest form."""
    terms: dict[int, int] = {}
    computed: list[tuple[Index, int]] = []
    for index, weight in parts:
        linear = as_linear(index)
        if linear is None:
            computed.append((index, weight))
            continue
        constant += weight * linear.constant
        for axis, coefficient in linear.terms:
            terms[axis] = terms.get(axis, 0) + weight * coefficient
    kept = tuple((axis, c) for axis, c in sorted(terms.items()) if c)
    if computed:
        rest = [(Linear(kept, 0), 1)] if kept else []
        if len(computed) == 1 and not rest and constant == 0 and computed[0][1] == 1:
            return computed[0][0]
        return Total((*computed, *rest), constant)
    if not kept and constant == 0:
        return None
    if len(kept) == 1 and constant == 0 and kept[0][1] == 1:
        return kept[0][0]
    return Linear(kept, constant)


def as_linear(index: Index) -> Linear | None:
    """An index as a linear form, or None if it is computed otherwise."""
    if index is None:
        return Linear((), 0)
    if isinstance(index, int):
        return Linear(((index, 1),), 0)
    return index if isinstance(index, Linear) else None


def axes_of(index: Index) -> tuple[int, ...]:
    """The axes that an index varies with."""
    if isinstance(index, Quotient):
        return axes_of(index.base)
    if isinstance(index, Looked):
        return tuple(axis for part in index.axes for axis in axes_of(part))
    if isinstance(index, Total):
        return tuple(axis for part, _ in index.parts for axis in axes_of(part))
    linear = as_linear(index)
    return () if linear is None else tuple(axis for axis, _ in linear.terms)


def reshaped(
    out_index: Sequence[Index], out_sizes: Sequence[int], in_sizes: Sequence[int]
) -> IndexMap:
    """The index of each dimension of a reshape's operand, from those of its result.

    Dimensions are matched in groups of equal product from the left, so that a dimension which is
    only split, only merged or left alone costs no division.
    """
    if 0 in in_sizes:
        return (None,) * len(in_sizes)
    result: list[Index] = []
    o = i = 0
    while i < len(in_sizes) or o < len(out_sizes):
        group_in, group_out = [], []
        product_in = product_out = 1
        while True:
            if product_in <= product_out and i < len(in_sizes):
                product_in *= in_sizes[i]
                group_in.append(in_sizes[i])
                i += 1
            elif o < len(out_sizes):
                product_out *= out_sizes[o]
                group_out.append((out_index[o], out_sizes[o]))
                o += 1
            else:
                break
            if product_in == product_out and group_in and (group_out or product_in == 1):
                break
        result.extend(_split_group(group_out, group_in))
    return tuple(result)


def _split_group(outer: Sequence[tuple[Index, int]], sizes: Sequence[int]) -> list[Index]:
    """Indices of dimensions `sizes` at the flat position that `outer` (index, size) pairs give."""
    weight = 1
    parts = []
    for index, size in reversed(outer):
        parts.append((index, weight))
        weight *= size
    flat = combine(parts)
    wide = [d for d, size in enumerate(sizes) if size != 1]
    indices: list[Index] = [None] * len(sizes)
    inner = 1
    for d in reversed(wide):
        if len(wide) == 1:
            indices[d] = flat
        else:
            indices[d] = Quotient(flat, inner, 0 if d == wide[0] else sizes[d])
        inner *= sizes[d]
    return indices


def address(
    index: Sequence[Index], strides: Sequence[int], sizes: Sequence[int]
) -> tuple[dict[int, int], int, tuple[tuple[Index, int], ...]]:
    """An element's offset as (stride by axis, constant, computed (index, stride) parts).

    Quotients of one base that together rebuild it (a merged pair of dense dimensions) fold back
    into the base.
    """
    parts = _fold_quotients(
        [(i, s) for i, s, n in zip(index, strides, sizes, strict=True) if s != 0 and n != 1]
    )
    total = combine(parts)
    linear = as_linear(total)
    if linear is not None:
        return dict(linear.terms), linear.constant, ()
    assert isinstance(total, (Quotient, Looked, Total))
    if not isinstance(total, Total):
        return {}, 0, ((total, 1),)
    by_axis: dict[int, int] = {}
    computed = []
    for part, weight in total.parts:
        form = as_linear(part)
        if form is None:
            computed.append((part, weight))
        else:
            for axis, coefficient in form.terms:
                by_axis[axis] = by_axis.get(axis, 0) + weight * coefficient
    return by_axis, total.constant, tuple(computed)


def _fold_quotients(parts: list[tuple[Index, int]]) -> list[tuple[Index, int]]:
    """(b // d) * (d / e) * s + ((b // e) % (d / e)) * s is (b // e) * s: join such neighbours."""
    folded = list(parts)
    changed = True
    while changed:
        changed = False
        for a in range(len(folded)):
            for b in range(len(folded)):
                joined = _joined(folded[a], folded[b])
                if joined is not None:
                    folded = [p for k, p in enumerate(folded) if k not in (a, b)]
                    folded.append(joined)
                    changed = True
                    break
            if changed:
                break
    return folded


def _joined(outer: tuple[Index, int], inner: tuple[Index, int]) -> tuple[Index, int] | None:
    (high, high_stride), (low, low_stride) = outer, inner
    if not isinstance(high, Quotient) or not isinstance(low, Quotient) or high.base != low.base:
        return None
    if low.modulus == 0 or high.divisor != low.divisor * low.modulus:
        return None
    if high_stride != low_stride * low.modulus:
        return None
    modulus = high.modulus * low.modulus
    if low.divisor == 1 and modulus == 0:
        return high.base, low_stride
    return Quotient(high.base, low.divisor, modulus), low_stride
