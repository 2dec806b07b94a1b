"""Sample operands of the rows of the op table, with the special values that their domains hold."""

from __future__ import annotations

from typing import Any

import numpy as np

from fuser_direct.dtypes import COMPONENT, INFO, is_complex
from fuser_direct.enums import DataType
from fuser_direct.ops.reference_pointwise import Array, reference_class, round_to
from fuser_direct.ops.table import Domain, PointwiseOp

# Ends of the float ranges: (a positive denormal, the greatest finite value).
_FLOAT_ENDS = {
    DataType.Double: (5e-324, 1.7976931348623157e308),
    DataType.Float: (1e-45, 3.4028234663852886e38),
    DataType.Half: (6e-8, 65504.0),
    DataType.BFloat16: (9.2e-41, 3.3895313892515355e38),
}

# Open and closed ranges of the domains other than `any`.
_RANGES: dict[str, tuple[float, float]] = {
    "small": (-8.0, 8.0),
    "positive": (0.05, 8.0),
    "unit": (-1.0, 1.0),
    "open_unit": (-0.99, 0.99),
    "open_two": (0.01, 1.99),
    "ge1": (1.0, 8.0),
    "gtm1": (-0.99, 8.0),
    "exponent": (-4.0, 4.0),
    "weight": (0.0, 1.0),
}

_INT_RANGES: dict[str, tuple[int, int]] = {
    "positive": (1, 8),
    "exponent": (0, 6),
    "shift": (0, 31),
    "index": (0, 1 << 40),
}


def specials(dtype: DataType) -> list[Any]:
    """Values of `dtype` at which implementations tend to differ."""
    kind = INFO[dtype].kind
    if kind == "bool":
        return [False, True]
    if kind == "int":
        limits = np.iinfo(reference_class(dtype))
        return [0, 1, -1, 2, -3, 7, limits.max, limits.min]
    if kind == "complex":
        return [0j, 1 + 0j, -1j, complex(np.inf, 1), complex(1, np.nan), complex(-np.inf, 0)]
    denormal, greatest = _FLOAT_ENDS[dtype]
    return [
        *(0.0, -0.0, 1.0, -1.0, 0.5, -1.5, 2.5, np.inf, -np.inf, np.nan),
        *(denormal, -denormal, greatest, -greatest),
    ]


def _base(
    domain: Domain, dtype: DataType, shape: tuple[int, ...], rng: np.random.Generator
) -> Array:
    """Ordinary values of the domain."""
    kind = INFO[dtype].kind
    if kind == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if kind == "int":
        low, high = _INT_RANGES.get(domain, (-20, 21))
        values = rng.integers(low, high, shape)
        return np.where(values == 0, 3, values) if domain == "nonzero" else values
    if kind == "complex":
        parts = [_base(domain, COMPONENT[dtype], shape, rng) for _ in range(2)]
        return np.asarray(parts[0] + 1j * (parts[1] - (2.0 if domain == "positive" else 0.0)))
    if domain == "any":
        return rng.standard_normal(shape) * 3.0
    if domain == "nonzero":
        return np.asarray(rng.uniform(0.1, 8.0, shape) * rng.choice([-1.0, 1.0], shape))
    return rng.uniform(*_RANGES[domain], shape)


def sample_domain(
    domain: Domain, dtype: DataType, shape: tuple[int, ...], rng: np.random.Generator
) -> Array:
    """Ordinary values of `domain`, of the reference class of `dtype` and exact in it."""
    return round_to(
        np.asarray(_base(domain, dtype, shape, rng)).astype(reference_class(dtype)), dtype
    )


def sample(
    row: PointwiseOp, dtype: DataType, shape: tuple[int, ...], rng: np.random.Generator
) -> list[Array]:
    """One array for each operand of `row` evaluated in `dtype`: values that the dtype has, in its
    reference class.

    Operands of domain `any` start with all combinations of the special values, as far as the shape
    has room. Complex operands have them for predicates only: complex arithmetic leaves open what
    infinities give.
    """
    operands = []
    repeats = 1
    for position, domain in enumerate(row.domains):
        operand = DataType.Bool if row.rule == "select" and position == 0 else dtype
        if row.rule == "random":
            operand = DataType.Int
        array = sample_domain(domain, operand, shape, rng).copy()
        if domain == "any" and not (is_complex(operand) and row.rule != "predicate"):
            points = specials(operand)
            cycle = np.repeat(np.asarray(points, array.dtype), repeats)
            # The first operand changes fastest, each further one after a whole cycle of those
            # before it.
            count = min(array.size, repeats * len(points) ** (row.arity - position))
            array.reshape(-1)[:count] = round_to(np.resize(cycle, count), operand)
            repeats *= len(points)
        operands.append(array)
    return operands
