"""Reference of the ops that move or pick elements; arrays in, arrays out, whatever their type."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from fuser_direct.ops.reference_pointwise import Array


def _ints(args: Sequence[Array]) -> list[int]:
    return [int(arg) for arg in args]


def _reshape(args: Sequence[Array], dim: int) -> Array:
    return args[0].reshape(_ints(args[1:]))


def _slice(args: Sequence[Array], dim: int) -> Array:
    bounds = _ints(args[1:])
    rank = args[0].ndim
    pairs = zip(bounds[:rank], bounds[rank:], strict=True)
    return np.asarray(args[0][tuple(slice(a, b) for a, b in pairs)])


def _pad(args: Sequence[Array], dim: int) -> Array:
    """args: x, fill, then left and right of each dim; negative widths crop."""
    x, fill, widths = args[0], args[1], _ints(args[2:])
    pairs = list(zip(widths[::2], widths[1::2], strict=True))
    whole = [size + left + right for size, (left, right) in zip(x.shape, pairs, strict=True)]
    out = np.full(whole, fill.astype(x.dtype))
    # Where the elements that stay stand in the result, and in x; there may be none.
    target = [
        slice(max(left, 0), max(min(left + size, extent), max(left, 0)))
        for size, extent, (left, _) in zip(x.shape, whole, pairs, strict=True)
    ]
    source = [
        slice(part.start - left, part.stop - left)
        for part, (left, _) in zip(target, pairs, strict=True)
    ]
    out[tuple(target)] = x[tuple(source)]
    return out


def _cat(args: Sequence[Array], dim: int) -> Array:
    return np.concatenate(list(args), axis=dim)


def _index_select(args: Sequence[Array], dim: int) -> Array:
    return np.take(args[0], args[1].reshape(-1), axis=dim)


def _select(args: Sequence[Array], dim: int) -> Array:
    return np.asarray(np.take(args[0], int(args[1]), axis=dim))


def _gather(args: Sequence[Array], dim: int) -> Array:
    x, index = args
    fitting = x[tuple(slice(None) if d == dim else slice(n) for d, n in enumerate(index.shape))]
    return np.asarray(np.take_along_axis(fitting, index, axis=dim))


def _take_along_axis(args: Sequence[Array], dim: int) -> Array:
    """The dims other than `dim` broadcast."""
    x, index = args
    others = np.broadcast_shapes(
        (*x.shape[:dim], 1, *x.shape[dim + 1 :]), (*index.shape[:dim], 1, *index.shape[dim + 1 :])
    )
    wide_x = np.broadcast_to(x, (*others[:dim], x.shape[dim], *others[dim + 1 :]))
    wide = np.broadcast_to(index, (*others[:dim], index.shape[dim], *others[dim + 1 :]))
    return np.asarray(np.take_along_axis(wide_x, wide, axis=dim))


def _scatter(args: Sequence[Array], dim: int) -> Array:
    x, index, source = args[0].copy(), args[1], args[2]
    if source.ndim:
        source = source[tuple(slice(n) for n in index.shape)]
    part = x[tuple(slice(None) if d == dim else slice(n) for d, n in enumerate(index.shape))]
    np.put_along_axis(part, index, np.asarray(source, x.dtype), axis=dim)
    return np.asarray(x)


INDEX_OPS: dict[str, Callable[[Sequence[Array], int], Array]] = {
    "cat": _cat,
    "gather": _gather,
    "index_select": _index_select,
    "pad": _pad,
    "reshape": _reshape,
    "scatter": _scatter,
    "select": _select,
    "slice": _slice,
    "take_along_axis": _take_along_axis,
}
"""By op: the function of the operands and of the attribute `dim` (0 for ops without it)."""
