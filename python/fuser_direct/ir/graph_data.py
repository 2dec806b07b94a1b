"""A fusion as plain data (lists, dicts, strings, numbers) and back, for files: no code is stored or
run.

Numbers of values are kept, so that the restored fusion prints as the first one did and is planned
alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fuser_direct.enums import DataType
from fuser_direct.errors import InputError, UnsupportedError
from fuser_direct.ir.fusion import Fusion
from fuser_direct.ir.values import EXPR_CLASSES, Expr, IterDomain, TensorView, Val

Data = Any


def to_data(fusion: Fusion) -> dict[str, Data]:
    """The definition. Schedules that were recorded on tensors are left out: they don't alter
    `execute`.

    Raises UnsupportedError for a fusion over several devices.
    """
    vals = fusion.vals()
    for val in vals:
        if isinstance(val, TensorView) and val.has_mesh():
            raise UnsupportedError(
                f"{val.label} is spread over devices; such fusions can't be stored"
            )
    position = {val: i for i, val in enumerate(vals)}
    axes = list(
        dict.fromkeys(a for v in vals if isinstance(v, TensorView) for a in v.get_root_domain())
    )
    axis_position = {axis: i for i, axis in enumerate(axes)}

    def refs(some: Sequence[Val]) -> list[int]:
        return [position[val] for val in some]

    return {
        "axes": [
            [a.number, a.kind, position[a.extent()], a.expanded and position[a.expanded]]
            for a in axes
        ],
        "vals": [_val_data(val, axis_position) for val in vals],
        "exprs": [
            [
                e.op,
                refs(e.ins),
                refs(e.outs),
                plain(e.attrs),
                e.operand_dtype and e.operand_dtype.name,
            ]
            for e in fusion.exprs
        ],
        "inputs": refs(fusion.inputs()),
        "outputs": refs(fusion.outputs()),
        "hidden": sorted(refs(list(fusion.hidden))),
        "aliases": [[position[out], position[target]] for out, target in fusion.aliases.items()],
    }


def _val_data(val: Val, axis_position: dict[IterDomain, int]) -> Data:
    if not isinstance(val, TensorView):
        return [val.number, val.dtype_.name, plain(val.value)]
    axes = [axis_position[axis] for axis in val.get_root_domain()]
    order = None if val.stride_order is None else list(val.stride_order)
    return [val.number, val.dtype_.name, axes, list(val.contiguity), order, val.is_cpu]


def from_data(data: dict[str, Data]) -> Fusion:
    """The fusion that `to_data` described. Raises InputError if the data describe none."""
    try:
        return _Reader(data).fusion
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise InputError(
            f"the stored definition is damaged: {type(error).__name__}: {error}"
        ) from error


class _Reader:
    """Builds one fusion: scalars, then the axes that they size, then tensors, then expressions."""

    def __init__(self, data: dict[str, Data]) -> None:
        self.fusion = fusion = Fusion()
        rows = data["vals"]
        self.vals: list[Val | None] = [self._scalar(row) if len(row) == 3 else None for row in rows]
        axes = [self._axis(row) for row in data["axes"]]
        for i, row in enumerate(rows):
            if len(row) != 3:
                self.vals[i] = self._tensor(row, axes)
        fusion._vals = [self._val(i) for i in range(len(rows))]
        for row in data["exprs"]:
            self._expr(*row)
        fusion._inputs = [self._val(i) for i in data["inputs"]]
        fusion._outputs = [self._output(i) for i in data["outputs"]]
        fusion.hidden = {self._output(i) for i in data["hidden"]}
        fusion.aliases = {self._output(o): self._output(t) for o, t in data["aliases"]}
        fusion._counts = {
            "tensor": 1 + max((v.number for v in fusion._vals if v.is_tensor()), default=-1),
            "scalar": 1 + max((v.number for v in fusion._vals if not v.is_tensor()), default=-1),
            "axis": 1 + max((axis.number for axis in axes), default=-1),
        }

    def _val(self, index: int) -> Val:
        val = self.vals[index]
        if index < 0 or val is None:
            raise ValueError(f"value {index} stands before its definition")
        return val

    def _output(self, index: int) -> TensorView:
        val = self._val(index)
        if not isinstance(val, TensorView):
            raise ValueError(f"value {index} is no tensor")
        return val

    def _scalar(self, row: Data) -> Val:
        number, dtype, value = row
        return Val(self.fusion, number, _dtype(dtype), restored(value))

    def _axis(self, row: Data) -> IterDomain:
        number, kind, extent, expanded = row
        grown = None if expanded is None else self._val(expanded)
        return IterDomain(self.fusion, number, kind, self._val(extent), grown)

    def _tensor(self, row: Data, axes: list[IterDomain]) -> TensorView:
        number, dtype, own, contiguity, order, is_cpu = row
        its_axes = tuple(axes[i] for i in own)
        its_order = None if order is None else tuple(order)
        flags = tuple(contiguity)
        return TensorView(self.fusion, number, _dtype(dtype), its_axes, flags, its_order, is_cpu)

    def _expr(
        self, op: str, ins: list[int], outs: list[int], attrs: Data, dtype: str | None
    ) -> None:
        operands, results = [self._val(i) for i in ins], [self._val(i) for i in outs]
        kind = EXPR_CLASSES.get(op, Expr)
        operand_dtype = None if dtype is None else _dtype(dtype)
        number = len(self.fusion.exprs)
        made = kind(
            self.fusion, number, op, operands, results, restored(attrs), operand_dtype, None
        )
        for operand in dict.fromkeys(operands):
            operand._uses.append(made)
        for result in results:
            result._definition = made
        self.fusion.exprs.append(made)


def _dtype(name: str) -> DataType:
    return DataType.__members__[name]  # type: ignore[no-any-return]


def plain(value: Any) -> Data:
    """Attributes and constants as JSON holds them; what JSON lacks or rounds becomes {"kind":
    text}.
    """
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return {"float": value.hex()}
    if isinstance(value, complex):
        return {"complex": [value.real.hex(), value.imag.hex()]}
    if isinstance(value, DataType):
        return {"dtype": value.name}
    if isinstance(value, (tuple, list)):
        return {type(value).__name__: [plain(element) for element in value]}
    if isinstance(value, dict):
        return {"dict": [[name, plain(element)] for name, element in value.items()]}
    raise UnsupportedError(f"a {type(value).__name__} in a definition can't be stored: {value!r}")


def restored(data: Data) -> Any:
    """The value that `plain` stored."""
    if not isinstance(data, dict):
        return data
    ((kind, content),) = data.items()
    if kind == "float":
        return float.fromhex(content)
    if kind == "complex":
        return complex(float.fromhex(content[0]), float.fromhex(content[1]))
    if kind == "dtype":
        return _dtype(content)
    if kind == "dict":
        return {name: restored(element) for name, element in content}
    if kind not in ("tuple", "list"):
        raise ValueError(f"unknown kind {kind!r}")
    elements = [restored(element) for element in content]
    return tuple(elements) if kind == "tuple" else elements
