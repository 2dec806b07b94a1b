"""Definitions as text, their round trip through `repr`, and checks of calls that run nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fuser_direct import DataType, FusionDefinition, TensorView, Val
from fuser_direct.ops.checks import check_call
from tests.unit.sizes import SizeWalk


def axes(tv: Any) -> str:
    """The logical axes as text: i4 static, i? symbolic, b1 broadcast, b1x5 expanded, ?? unknown."""
    texts = []
    for axis in tv.logical:
        extent = axis.extent().value
        text = f"{axis.kind}{'?' if extent is None else extent}"
        if axis.expanded is not None:
            size = axis.expanded.value
            text += f"x{'?' if size is None else size}"
        texts.append(text)
    return " ".join(texts)


def defined(build: Callable[[Any], Any]) -> tuple[Any, Any]:
    """A definition whose outputs are what `build` returns: (definition, outputs)."""
    with FusionDefinition() as fd:
        out = build(fd)
        for tv in out if isinstance(out, (tuple, list)) else (out,):
            fd.add_output(tv)
    return fd, out


def executed(text: str) -> Any:
    """The definition that printed text makes."""
    names: dict[str, Any] = {"FusionDefinition": FusionDefinition, "DataType": DataType}
    exec(text, names)
    with FusionDefinition() as fd:
        names["nvfuser_fusion"](fd)
    return fd


def round_trip(fd: Any) -> Any:
    """The definition that `repr(fd)` makes, which must be equal to `fd`."""
    again = executed(repr(fd))
    assert again.fusion == fd.fusion, f"{fd!r}\n{again!r}"
    assert repr(executed(repr(again))) == repr(again)
    for mine, theirs in zip(fd.fusion.outputs(), again.fusion.outputs(), strict=True):
        assert axes(mine) == axes(theirs)
    return again


def statements(fd: Any) -> list[str]:
    """The printed statements."""
    return [line.strip() for line in repr(fd).split("\n")[1:-1]]


def check_with(
    fd: Any, shapes: Sequence[Sequence[int]], scalars: Mapping[int, Any] | None = None
) -> None:
    """`check_call` of every tensor expression for tensor inputs of `shapes`, in order.

    scalars: values of scalar inputs by position among the inputs.
    """
    given = iter(shapes)
    values: dict[Val, Any] = {}
    for position, val in enumerate(fd.fusion.inputs()):
        values[val] = (
            tuple(next(given)) if isinstance(val, TensorView) else (scalars or {})[position]
        )
    walk = SizeWalk(values)
    for expr in fd.fusion.exprs:
        if not expr.outs or expr.outs[0].is_tensor():
            check_call(expr, walk.sizes, walk.integer)
