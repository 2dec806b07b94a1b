"""Random numbers by Philox4x32-10 as LLVM IR; `ops/philox.py` says which bits go where."""

from __future__ import annotations

import math

from fuser_direct.codegen.llvm_builder import Builder
from fuser_direct.codegen.llvm_math_angle import AngleMath
from fuser_direct.codegen.llvm_types import V, constant

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
_LOW = 0xFFFFFFFF


def philox_uniform(math_: AngleMath, elem: str, seed: V, offset: V, index: V) -> V:
    """A number in [0, 1) for element `index`, in `elem` (float or double)."""
    b = math_.b
    words = _words(b, elem, seed, offset, index)
    if elem == "double":
        is_second = b.icmp("ne", b.and_(index, 1), 0)
        bits = b.select(is_second, _wide(b, words[2], words[3]), _wide(b, words[0], words[1]))
        return b.fmul(b.convert("uitofp", bits, elem), 2.0**-53)
    is_odd, is_late = b.icmp("ne", b.and_(index, 1), 0), b.icmp("ne", b.and_(index, 2), 0)
    late = b.select(is_odd, words[3], words[2])
    word = b.select(is_late, late, b.select(is_odd, words[1], words[0]))
    return b.fmul(b.convert("uitofp", b.lshr(word, 8), elem), 2.0**-24)


def philox_normal(math_: AngleMath, elem: str, seed: V, offset: V, index: V) -> V:
    """A standard normal number for element `index`, in `elem` (float or double)."""
    b = math_.b
    words = _words(b, elem, seed, offset, index)
    if elem == "double":
        first, second = _wide(b, words[0], words[1]), _wide(b, words[2], words[3])
        unit = 2.0**-53
    else:
        is_late = b.icmp("ne", b.and_(index, 2), 0)
        first, second = (b.lshr(b.select(is_late, words[2 + k], words[k]), 8) for k in (0, 1))
        unit = 2.0**-24
    above_zero = b.fmul(b.convert("uitofp", b.add(first, 1), elem), unit)
    radius = b.sqrt(b.fmul(math_.log(above_zero), -2.0))
    angle = b.fmul(b.convert("uitofp", second, elem), unit * 2.0 * math.pi)
    is_odd = b.icmp("ne", b.and_(index, 1), 0)
    return b.fmul(radius, b.select(is_odd, math_.sin(angle), math_.cos(angle)))


def _words(b: Builder, elem: str, seed: V, offset: V, index: V) -> tuple[V, V, V, V]:
    """The four words, each in an i64, of the block that element `index` lies in."""
    lanes = index.lanes
    block = b.lshr(index, 1 if elem == "double" else 2)
    halves = [
        half
        for whole in (block, b.splat(offset, lanes))
        for half in (b.and_(whole, _LOW), b.lshr(whole, 32))
    ]
    c0, c1, c2, c3 = halves
    key = b.splat(seed, lanes)
    k0, k1 = b.and_(key, _LOW), b.lshr(key, 32)
    for number in range(_ROUNDS):
        if number:
            k0 = b.and_(b.add(k0, _KEY_STEPS[0]), _LOW)
            k1 = b.and_(b.add(k1, _KEY_STEPS[1]), _LOW)
        # 32 x 32 bits fit in 64: no overflow.
        first = b.mul(c0, constant(_MULTIPLIERS[0], "i64", lanes))
        second = b.mul(c2, constant(_MULTIPLIERS[1], "i64", lanes))
        c0, c1, c2, c3 = (
            b.xor(b.xor(b.lshr(second, 32), c1), k0),
            b.and_(second, _LOW),
            b.xor(b.xor(b.lshr(first, 32), c3), k1),
            b.and_(first, _LOW),
        )
    return c0, c1, c2, c3


def _wide(b: Builder, high: V, low: V) -> V:
    """53 random bits of two words."""
    return b.lshr(b.or_(b.shl(high, 32), low), 11)
