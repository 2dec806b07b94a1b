"""Sizes of results as constants or scalar expressions, and the axes that have them.

A size is an int where it is known when the fusion is defined, else a Val. Equal math on equal
operands gives the same Val (`build.pointwise` sees to it), so that two results of the same shape
share their size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from fuser_direct.enums import DataType
from fuser_direct.errors import DefinitionError
from fuser_direct.ir.fusion import Fusion
from fuser_direct.ir.values import IterDomain, TensorView, Val
from fuser_direct.ops.build import cast_to, like
from fuser_direct.ops.pointwise import FUNCTIONS
from fuser_direct.ops.scalar import as_int, refuse_type

Size = Val | int


def simplified(size: Size) -> Size:
    """`size` as an int if it is a constant."""
    if isinstance(size, Val) and size.value is not None:
        return int(size.value.real)
    return size


def size_of(axis: IterDomain) -> Size:
    """The extent of `axis` that math sees."""
    return simplified(axis.size())


def is_same(a: Size, b: Size) -> bool:
    """Whether two sizes are equal whatever the inputs: one constant, or one Val."""
    return a is b or (isinstance(a, int) and isinstance(b, int) and a == b)


def as_val(fusion: Fusion, size: Size) -> Val:
    """`size` as an operand of an expression."""
    return fusion.new_scalar(DataType.Index, size) if isinstance(size, int) else size


def _apply(op: str, a: Size, b: Size) -> Val:
    result: Val = FUNCTIONS[op](a, b)
    return result


def add(a: Size, b: Size) -> Size:
    """a + b."""
    if isinstance(a, int):
        a, b = b, a
    if isinstance(b, int):
        if isinstance(a, int):
            return a + b
        if b == 0:
            return a
    return _apply("add", a, b)


def sub(a: Size, b: Size) -> Size:
    """a - b."""
    if isinstance(a, int) and isinstance(b, int):
        return a - b
    if is_same(a, b):
        return 0
    return a if is_same(b, 0) else _apply("sub", a, b)


def mul(a: Size, b: Size) -> Size:
    """a * b."""
    if isinstance(a, int):
        a, b = b, a
    if isinstance(b, int):
        if isinstance(a, int):
            return a * b
        if b in (0, 1):
            return a if b else 0
    return _apply("mul", a, b)


def minimum(a: Size, b: Size) -> Size:
    """The lesser of two sizes, neither of which is negative."""
    return _extreme("minimum", min, a, b)


def maximum(a: Size, b: Size) -> Size:
    """The greater of two sizes, neither of which is negative."""
    return _extreme("maximum", max, a, b)


def _extreme(op: str, fold: Callable[[int, int], int], a: Size, b: Size) -> Size:
    if isinstance(a, int) and isinstance(b, int):
        return fold(a, b)
    if is_same(a, b):
        return a
    if is_same(a, 0) or is_same(b, 0):
        other = b if is_same(a, 0) else a
        return 0 if op == "minimum" else other
    return _apply(op, a, b)


def product(sizes: Iterable[Size]) -> Size:
    """The product of `sizes`; 1 if there are none."""
    return _folded(mul, sizes, 1)


def total(sizes: Iterable[Size]) -> Size:
    """The sum of `sizes`."""
    return _folded(add, sizes, 0)


def _folded(join: Callable[[Size, Size], Size], sizes: Iterable[Size], start: int) -> Size:
    result: Size = start
    for size in sizes:
        result = join(result, size)
    return result


def quotient(numerator: Sequence[Size], denominator: Sequence[Size]) -> Size:
    """The product of `numerator` over that of `denominator`; factors that stand in both cancel.

    A constant divisor that does not divide the constant part is left to a division at run time.
    """
    above = [size for size in numerator if isinstance(size, Val)]
    below = []
    for size in denominator:
        if isinstance(size, int):
            continue
        match = next((i for i, other in enumerate(above) if other is size), None)
        if match is None:
            below.append(size)
        else:
            del above[match]
    factor = product(size for size in numerator if isinstance(size, int))
    divisor = product(size for size in denominator if isinstance(size, int))
    assert isinstance(factor, int)
    assert isinstance(divisor, int)
    if divisor and factor % divisor == 0:
        factor, divisor = factor // divisor, 1
    whole = product([*above, factor])
    over = product([*below, divisor])
    if is_same(over, 1):
        return whole
    return (
        whole // over
        if isinstance(whole, int) and isinstance(over, int)
        else _apply("div", whole, over)
    )


def checked_extent(op: str, dim: int, size: Size) -> Size:
    """`size` unless it is known to be negative; DefinitionError then."""
    if isinstance(size, int) and size < 0:
        raise DefinitionError(
            f"{op}: Invalid resized domain extent {size} for dim {dim}; extents are 0 or more"
        )
    return size


def sized_axis(fusion: Fusion, size: Size) -> IterDomain:
    """An axis of `size`: a broadcast if that is 1; of kind "?" if that may be found out at run
    time.
    """
    size = simplified(size)
    if isinstance(size, int):
        if size == 1:
            return fusion.new_axis("b", fusion.one())
        return fusion.new_axis("i", as_val(fusion, size))
    return fusion.new_axis("?", size)


def factory_axis(fusion: Fusion, size: Size) -> IterDomain:
    """An axis of a tensor that is made of scalars alone.

    As `sized_axis`, but an extent of an input makes an axis that never broadcasts, as the input's.
    """
    size = simplified(size)
    if isinstance(size, int) or size.definition() is not None or fusion.is_input(size):
        return sized_axis(fusion, size)
    return fusion.new_axis("i", size)


def dense_axis(fusion: Fusion, axis: IterDomain) -> IterDomain:
    """A new axis of the size of `axis` for a result that is written out: no expanded broadcast."""
    if axis.expanded is None:
        return like(fusion, axis)
    return sized_axis(fusion, axis.expanded)


def dense_axes(fusion: Fusion, tv: TensorView) -> list[IterDomain]:
    """New axes of the shape of `tv` for a result that is written out."""
    return [dense_axis(fusion, axis) for axis in tv.logical]


def entries(
    fusion: Fusion, op: str, argument: str, value: object, takes_float: bool = False
) -> list[Size]:
    """A list or tuple of ints and integer Vals, of any sign; constants come back as ints.

    takes_float: a floating Val is truncated.
    """
    if not isinstance(value, (list, tuple)):
        raise refuse_type(op, argument, "a list or tuple of ints and Vals", value)
    return [
        _entry(fusion, op, f"{argument}[{i}]", i, item, takes_float) for i, item in enumerate(value)
    ]


def _entry(
    fusion: Fusion, op: str, argument: str, index: int, entry: object, takes_float: bool
) -> Size:
    if not isinstance(entry, Val) or isinstance(entry, (TensorView, IterDomain)):
        number = as_int(entry)
        if number is None:
            raise DefinitionError(
                f"{op}: Unsupported iterable object type for define_vector! Index:{index} of "
                f"{argument} is {entry!r} ({type(entry).__name__}); use ints and Vals"
            )
        return number
    fusion.check_owned(entry, op, argument)
    if entry.dtype_ in (DataType.Int, DataType.Index, DataType.Int32):
        return simplified(entry)
    if takes_float and entry.dtype_ in (DataType.Double, DataType.Float):
        if entry.value is not None:
            return int(entry.value.real)
        return cast_to(fusion, entry, DataType.Index)
    raise DefinitionError(f"{op}: {argument} must be an integer, got {entry} of {entry.dtype_}")
