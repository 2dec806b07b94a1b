"""The random numbers of `uniform` and `normal`, in NumPy; code generators compute the same bits.

Element `index` of a tensor (its position in row-major order, whatever the strides) depends on the
seed, the offset and the index only. Philox4x32-10 turns a 128-bit counter and a 64-bit key into
four 32-bit words w0..w3:

    key      (seed, seed >> 32)
    counter  (block, block >> 32, offset, offset >> 32), low 32 bits each

Float: four elements share a block, block = index // 4, j = index % 4.
    uniform   (wj >> 8) * 2**-24, in [0, 1)
    normal    words in pairs, a = w0 and b = w1 for j = 0 and 1, a = w2 and b = w3 for j = 2 and 3:
              r = sqrt(-2 ln(((a >> 8) + 1) * 2**-24)), t = 2 pi (b >> 8) * 2**-24;
              r cos(t) for even j, r sin(t) for odd j
Double: two elements share a block, block = index // 2, j = index % 2.
    uniform   (((w2j << 32) | w2j+1) >> 11) * 2**-53, in [0, 1)
    normal    u = (w0 << 32 | w1) >> 11, v = (w2 << 32 | w3) >> 11: r = sqrt(-2 ln((u + 1) 2**-53)),
              t = 2 pi v 2**-53; r cos(t) for j = 0, r sin(t) for j = 1
Half types are Float, cast.

Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC11); the Box-Muller
transform.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fuser_direct.enums import DataType

Array = NDArray[Any]

_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_LOW = np.uint64(0xFFFFFFFF)
_ROUNDS = 10


def philox(key: tuple[int, int], counter: tuple[Any, Any, Any, Any]) -> tuple[Array, ...]:
    """The four words of counters under `key`; all are uint64 arrays below 2**32."""
    c0, c1, c2, c3 = np.broadcast_arrays(*(np.asarray(c, np.uint64) for c in counter))
    k0, k1 = key
    for number in range(_ROUNDS):
        if number:
            k0, k1 = (k0 + _KEY_STEPS[0]) & 0xFFFFFFFF, (k1 + _KEY_STEPS[1]) & 0xFFFFFFFF
        # 32 x 32 bits fit in 64: no overflow.
        first, second = _MULTIPLIERS[0] * c0, _MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = (
            (second >> np.uint64(32)) ^ c1 ^ np.uint64(k0),
            second & _LOW,
            (first >> np.uint64(32)) ^ c3 ^ np.uint64(k1),
            first & _LOW,
        )
    return c0, c1, c2, c3


def _block_words(seed: int, offset: int, block: Array) -> tuple[Array, ...]:
    key = (seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF)
    where = np.asarray(block, np.uint64)
    low, high = offset & 0xFFFFFFFF, (offset >> 32) & 0xFFFFFFFF
    return philox(key, (where & _LOW, where >> np.uint64(32), low, high))


def _pick(words: tuple[Array, ...], which: Array) -> Array:
    return np.asarray(np.choose(np.asarray(which, np.intp), words))


def _wide(high: Array, low: Array) -> Array:
    """53 random bits of two words."""
    return np.asarray((high << np.uint64(32) | low) >> np.uint64(11))


def uniform(seed: int, offset: int, index: Array, dtype: DataType) -> Array:
    """Numbers in [0, 1) for elements `index`, as float64; of Double, or of Float for others."""
    index = np.asarray(index, np.int64)
    if dtype is DataType.Double:
        words = _block_words(seed, offset, index // 2)
        first = index % 2 * 2
        bits = _wide(_pick(words, first), _pick(words, first + 1))
        return np.asarray(bits * 2.0**-53)
    words = _block_words(seed, offset, index // 4)
    return np.asarray((_pick(words, index % 4) >> np.uint64(8)) * 2.0**-24)


def normal(seed: int, offset: int, index: Array, dtype: DataType) -> Array:
    """Standard normal numbers for elements `index`, in float64 from the bits of `dtype`."""
    index = np.asarray(index, np.int64)
    if dtype is DataType.Double:
        words = _block_words(seed, offset, index // 2)
        a, b, unit = _wide(words[0], words[1]), _wide(words[2], words[3]), 2.0**-53
    else:
        words = _block_words(seed, offset, index // 4)
        first = index % 4 // 2 * 2
        a, b = (_pick(words, first + k) >> np.uint64(8) for k in (0, 1))
        unit = 2.0**-24
    radius = np.sqrt(-2.0 * np.log((a + np.uint64(1)) * unit))
    angle = 2.0 * np.pi * (b * unit)
    return np.asarray(radius * np.where(index % 2 == 0, np.cos(angle), np.sin(angle)))


def fill(op: str, seed: int, offset: int, shape: tuple[int, ...], dtype: DataType) -> Array:
    """The standard `uniform` or `normal` numbers of a tensor of `shape`, as float64."""
    index = np.arange(int(np.prod(shape, dtype=np.int64)), dtype=np.int64)
    make = uniform if op == "uniform" else normal
    return make(seed, offset, index, dtype).reshape(shape)
