"""Sizes of a fusion's tensors for given inputs, from the symbols alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fuser_direct import IterDomain, TensorView, Val
from fuser_direct.ops.reference import evaluate_expr
from fuser_direct.ops.reference_pointwise import reference_class


class SizeWalk:
    """values: shapes of tensor inputs and values of scalar inputs."""

    def __init__(self, values: Mapping[Val, Any]) -> None:
        self._known: dict[Val, Any] = {}
        for val, value in values.items():
            if isinstance(val, TensorView):
                for axis, size in zip(val.logical, value, strict=True):
                    self._known.setdefault(axis.size(), size)
            else:
                self._known[val] = value

    def sizes(self, tv: TensorView) -> tuple[int, ...]:
        """The extents of `tv`."""
        return tuple(self._extent(axis) for axis in tv.logical)

    def _extent(self, axis: IterDomain) -> int:
        return self.integer(axis.size())

    def integer(self, val: Val) -> int:
        """The value of a scalar."""
        return int(self._value(val))

    def _value(self, val: Val) -> Any:
        if val.value is not None:
            return val.value
        if val not in self._known:
            expr = val.definition()
            assert expr is not None, f"{val} has no value"
            args = [
                np.asarray(self._value(operand), reference_class(operand.dtype_))
                for operand in expr.ins
            ]
            self._known[val] = evaluate_expr(expr, args)[0].item()
        return self._known[val]
