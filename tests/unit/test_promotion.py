"""Type promotion, implicit casts and rank broadcasts, and the operand kinds that each op takes."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from fuser_direct import (
    DataType,
    DefinitionError,
    DefinitionTypeError,
    FusionDefinition,
    TensorView,
)
from fuser_direct.dtypes import is_complex, is_floating
from fuser_direct.ops.promotion import fold_classes, promote_pair
from fuser_direct.ops.table import ROWS

NAMES = {
    "d": DataType.Double,
    "f": DataType.Float,
    "h": DataType.Half,
    "bf": DataType.BFloat16,
    "l": DataType.Int,
    "x": DataType.Index,
    "i": DataType.Int32,
    "b": DataType.Bool,
    "cf": DataType.ComplexFloat,
    "cd": DataType.ComplexDouble,
}

# The common dtype of two values of equal standing, row by column, by the peer's rules.
PAIRS = """
     d  f  h  bf l  x  i  b  cf cd
d    d  d  d  d  d  d  d  d  cd cd
f    d  f  f  f  f  f  f  f  cf cd
h    d  f  h  f  h  h  h  h  cf cd
bf   d  f  f  bf bf bf bf bf cf cd
l    d  f  h  bf l  x  l  l  cf cd
x    d  f  h  bf x  x  x  x  cf cd
i    d  f  h  bf l  x  i  i  cf cd
b    d  f  h  bf l  x  i  b  cf cd
cf   cd cf cf cf cf cf cf cf cf cd
cd   cd cd cd cd cd cd cd cd cd cd
"""


def pair_cases() -> list[tuple[str, str, str]]:
    header, *rows = [line.split() for line in PAIRS.strip().splitlines()]
    return [(row[0], column, row[i + 1]) for row in rows for i, column in enumerate(header)]


@pytest.mark.parametrize(("a", "b", "expected"), pair_cases())
def test_pair(a: str, b: str, expected: str) -> None:
    assert promote_pair(NAMES[a], NAMES[b]) is NAMES[expected]


def tensor(fd: Any, dtype: DataType, rank: int = 1) -> TensorView:
    return fd.define_tensor([-1] * rank, dtype=dtype)  # type: ignore[no-any-return]


def operand(fd: Any, text: str) -> Any:
    """`t:f` a rank-1 tensor, `0:f` one of rank 0, `s:f` a symbolic scalar, else a Python number."""
    where, _, dtype = text.partition(":")
    if where == "t":
        return tensor(fd, NAMES[dtype])
    if where == "0":
        return tensor(fd, NAMES[dtype], rank=0)
    if where == "s":
        return fd.define_scalar(NAMES[dtype])
    return {"2": 2, "2.5": 2.5, "2j": 2j, "True": True}[text]


@pytest.mark.parametrize(
    ("lhs", "rhs", "expected"),
    [
        # What differs from PyTorch.
        ("t:l", "2.5", "d"),
        ("t:i", "2.5", "d"),
        ("t:h", "t:h", "f"),
        ("t:h", "2.5", "f"),
        ("t:bf", "2", "f"),
        # Scalars give way to tensors of their kind.
        ("t:i", "2", "i"),
        ("t:b", "2", "l"),
        ("t:b", "True", "l"),
        ("t:f", "2.5", "f"),
        ("t:f", "s:d", "f"),
        ("t:f", "2j", "cf"),
        ("t:d", "2j", "cd"),
        ("t:l", "2j", "cd"),
        ("t:cf", "2.5", "cf"),
        ("t:cf", "s:d", "cf"),
        ("t:l", "s:i", "l"),
        ("t:i", "s:l", "i"),
        ("t:i", "s:h", "f"),
        # Rank-0 tensors give way to others, and scalars to them.
        ("t:f", "0:d", "f"),
        ("t:i", "0:l", "i"),
        ("t:i", "0:f", "f"),
        ("0:f", "2.5", "f"),
        ("0:f", "0:d", "d"),
        # Tensors of equal standing.
        ("t:f", "t:d", "d"),
        ("t:l", "t:f", "f"),
        ("t:i", "t:l", "l"),
        ("t:h", "t:bf", "f"),
        ("t:b", "t:b", "b"),
        ("t:d", "t:cf", "cd"),
        # Scalars alone.
        ("2", "2.5", "d"),
        ("s:l", "s:x", "x"),
        ("s:f", "2.5", "d"),
        ("s:h", "s:h", "f"),
    ],
)
def test_common_dtype_of_add(lhs: str, rhs: str, expected: str) -> None:
    for order in (1, -1):
        with FusionDefinition() as fd:
            result = fd.ops.add(*[operand(fd, text) for text in (lhs, rhs)][::order])
        assert result.dtype_ is NAMES[expected]
        definition = result.definition()
        assert definition is not None
        assert definition.operand_dtype is NAMES[expected]


def test_half_with_complex_number_is_refused() -> None:
    fragment = r"add: there is no complex type over DataType\.Half"
    with FusionDefinition() as fd, pytest.raises(DefinitionError, match=fragment):
        fd.ops.add(tensor(fd, DataType.Half), 2j)


@pytest.mark.parametrize(
    ("higher", "lower", "expected"),
    [
        ("cf", "cd", "cf"),
        ("f", "cd", "cf"),
        ("l", "cf", "cf"),
        ("h", "d", "h"),
        ("b", "i", "i"),
        ("i", "d", "d"),
        ("i", "l", "i"),
    ],
)
def test_classes_fold_from_high_to_low(higher: str, lower: str, expected: str) -> None:
    assert fold_classes(NAMES[higher], NAMES[lower]) is NAMES[expected]
    assert fold_classes(NAMES[higher], None) is NAMES[higher]
    assert fold_classes(None, NAMES[lower]) is NAMES[lower]


def test_tensors_are_cast_visibly_then_broadcast() -> None:
    with FusionDefinition() as fd:
        a, b = tensor(fd, DataType.Half, 1), tensor(fd, DataType.BFloat16, 3)
        c = fd.ops.mul(a, b)
    assert fd.fusion is not None
    assert [expr.op for expr in fd.fusion.exprs] == ["cast", "cast", "broadcast", "mul"]
    assert [str(out)[:2] for expr in fd.fusion.exprs for out in expr.outs] == [
        "T2",
        "T3",
        "T4",
        "T5",
    ]
    assert c.definition().ins[0].definition().attr("flags") == (True, True, False)
    assert [axis.kind for axis in c.logical] == ["i", "i", "i"]


def test_rank_0_tensors_broadcast_too() -> None:
    with FusionDefinition() as fd:
        c = fd.ops.add(tensor(fd, DataType.Float, 0), tensor(fd, DataType.Float, 2))
    assert c.ndim == 2
    assert c.definition().ins[0].definition().attr("flags") == (True, True)


def test_scalar_operands_keep_their_width_within_a_kind() -> None:
    with FusionDefinition() as fd:
        x, s = tensor(fd, DataType.Float), fd.define_scalar(DataType.Double)
        by_symbol, by_number = fd.ops.add(x, s), fd.ops.add(x, 2)
        i, n = tensor(fd, DataType.Int32), fd.define_scalar(DataType.Bool)
        by_bool = fd.ops.add(i, n)
    assert by_symbol.definition().ins[1] is s
    constant = by_number.definition().ins[1]
    assert (constant.value, constant.dtype_) == (2.0, DataType.Double)
    assert type(constant.value) is float
    cast = by_bool.definition().ins[1]
    assert cast.dtype_ is DataType.Int32
    assert cast.definition().op == "cast"


def test_python_bool_counts_as_int() -> None:
    with FusionDefinition() as fd:
        result = fd.ops.add(True, 1)
    assert [val.dtype_ for val in result.definition().ins] == [DataType.Int] * 2
    assert [val.value for val in result.definition().ins] == [1, 1]


def test_scalar_ops_give_scalars() -> None:
    with FusionDefinition() as fd:
        s = fd.define_scalar(DataType.Int)
        assert not fd.ops.exp(s).is_tensor()
        assert fd.ops.exp(s).dtype_ is DataType.Float
        assert fd.ops.exp(2.0).dtype_ is DataType.Double
        assert fd.ops.lt(s, 3).dtype_ is DataType.Bool


# --- result dtypes by rule ---

FLOAT_OPS = {"h": "f", "bf": "f", "f": "f", "d": "d", "i": "f", "l": "f", "b": "f"}
KEPT = {name: name for name in ("h", "bf", "f", "d", "i", "l")}


@pytest.mark.parametrize(
    ("op", "table"),
    [
        *((op, FLOAT_OPS) for op in ("exp", "reciprocal", "sigmoid", "lgamma", "erfcinv")),
        ("exp", {"cf": "cf", "cd": "cd"}),
        ("abs", {**KEPT, "cf": "f", "cd": "d"}),
        ("neg", {"h": "f", "f": "f", "i": "i", "l": "l", "cd": "cd"}),
        *((op, KEPT) for op in ("ceil", "floor", "round", "trunc", "relu", "sign")),
        ("silu", {"h": "h", "bf": "bf", "f": "f", "d": "d"}),
        ("frac", {"h": "h", "f": "f", "d": "d"}),
        ("logical_not", dict.fromkeys(("b", "i", "l", "f", "h", "cd"), "b")),
        ("bitwise_not", {"i": "i", "l": "l", "b": "b"}),
        ("signbit", {"f": "b", "h": "b", "i": "b"}),
        ("isfinite", dict.fromkeys(("h", "f", "d", "i", "l", "b", "cf", "cd"), "b")),
        ("isreal", dict.fromkeys(("f", "l", "b", "cf"), "b")),
        ("real", {"cf": "f", "cd": "d", "f": "f", "h": "h", "l": "l"}),
        ("imag", {"cf": "f", "cd": "d"}),
        ("set", {name: name for name in NAMES}),
        ("segment_set", {name: name for name in NAMES}),
    ],
)
def test_unary_result_dtype(op: str, table: dict[str, str]) -> None:
    for source, expected in table.items():
        with FusionDefinition() as fd:
            result = getattr(fd.ops, op)(tensor(fd, NAMES[source]))
        assert result.dtype_ is NAMES[expected], (op, source)


@pytest.mark.parametrize(
    ("op", "pair", "expected"),
    [
        ("div", "l l", "l"),
        ("truediv", "l l", "f"),
        ("truediv", "i d", "d"),
        ("mod", "i l", "l"),
        ("atan2", "i i", "f"),
        ("atan2", "d i", "d"),
        ("nextafter", "h h", "f"),
        ("nextafter", "d f", "d"),
        ("minimum", "b b", "b"),
        ("maximum", "h h", "f"),
        ("eq", "h bf", "b"),
        ("lt", "i f", "b"),
        ("logical_and", "f i", "b"),
        ("bitwise_and", "i l", "l"),
        ("bitwise_and", "b b", "b"),
        ("bitwise_or", "b i", "i"),
        ("bitwise_xor", "b b", "b"),
        ("bitwise_left_shift", "i i", "i"),
        ("gcd", "l i", "l"),
        ("logical_right_shift", "i l", "i"),
        ("logical_right_shift", "l i", "l"),
        ("complex", "f f", "cf"),
        ("complex", "d d", "cd"),
        ("pow", "f l", "f"),
    ],
)
def test_binary_result_dtype(op: str, pair: str, expected: str) -> None:
    with FusionDefinition() as fd:
        result = getattr(fd.ops, op)(*(tensor(fd, NAMES[name]) for name in pair.split()))
    assert result.dtype_ is NAMES[expected]


def test_comparison_is_evaluated_in_the_promoted_type() -> None:
    with FusionDefinition() as fd:
        result = fd.ops.lt(tensor(fd, DataType.Half), 0.1)
    assert result.definition().operand_dtype is DataType.Float


@pytest.mark.parametrize(
    ("op", "bools"),
    [("bitwise_and", "logical_and"), ("bitwise_or", "logical_or"), ("bitwise_xor", "ne")],
)
def test_bitwise_ops_of_bools_become_logic(op: str, bools: str) -> None:
    with FusionDefinition() as fd:
        result = getattr(fd.ops, op)(*(tensor(fd, DataType.Bool) for _ in range(2)))
    assert result.definition().op == bools


def test_rounding_an_integer_is_a_copy() -> None:
    with FusionDefinition() as fd:
        for op in ("ceil", "floor", "round", "trunc"):
            assert getattr(fd.ops, op)(tensor(fd, DataType.Int)).definition().op == "set"


# --- where, clamp and their like ---


@pytest.mark.parametrize(
    ("x", "y", "expected"),
    [
        ("t:h", "t:h", "h"),
        ("t:h", "t:bf", "f"),
        ("t:h", "2.5", "h"),
        ("2.5", "2.5", "d"),
        ("2", "2", "l"),
        ("t:l", "2.5", "d"),
        ("t:f", "t:cf", "cf"),
    ],
)
def test_where_keeps_half(x: str, y: str, expected: str) -> None:
    with FusionDefinition() as fd:
        condition = tensor(fd, DataType.Bool, 2)
        result = fd.ops.where(condition, operand(fd, x), operand(fd, y))
    assert result.dtype_ is NAMES[expected]
    assert result.ndim == 2
    assert result.definition().operand_dtype is NAMES[expected]


def test_where_needs_a_bool_condition() -> None:
    with FusionDefinition() as fd:
        for condition in (tensor(fd, DataType.Float), 1, True):
            with pytest.raises(DefinitionError, match="Condition should be of DataType Bool"):
                fd.ops.where(condition, 1.0, 2.0)


def test_clamp_keeps_the_dtype_and_fills_in_absent_bounds() -> None:
    with FusionDefinition() as fd:
        half = fd.ops.clamp(tensor(fd, DataType.Half), None, 2)
        whole = fd.ops.clamp(tensor(fd, DataType.Int32), 1.5, None)
        far = fd.ops.clamp(tensor(fd, DataType.Int), float("-inf"), 1e30)
        bound = fd.define_scalar(DataType.Double)
        symbolic = fd.ops.clamp(tensor(fd, DataType.Int), bound, 3)
    assert half.dtype_ is DataType.Half
    assert [val.value for val in half.definition().ins[1:]] == [float("-inf"), 2.0]
    assert [val.value for val in whole.definition().ins[1:]] == [1, 2**31 - 1]
    assert [val.value for val in far.definition().ins[1:]] == [-(2**63), 2**63 - 1]
    low = symbolic.definition().ins[1]
    assert (low.definition().op, low.dtype_) == ("cast", DataType.Int)


def test_threshold_and_lerp_and_addcmul() -> None:
    with FusionDefinition() as fd:
        x = tensor(fd, DataType.BFloat16)
        assert fd.ops.threshold(x, 0.5, 0).dtype_ is DataType.BFloat16
        assert fd.ops.lerp(x, x, 0.25).dtype_ is DataType.Float
        assert fd.ops.lerp(tensor(fd, DataType.Double), x, x).dtype_ is DataType.Double
        total = fd.ops.addcmul(x, x, tensor(fd, DataType.Float), 0.5)
        assert total.dtype_ is DataType.Float
        assert total.definition().op == "add"
        assert total.definition().ins[1].definition().op == "mul"


# --- refusals ---

REFUSED = [
    ("bitwise_not", ["t:f"], "input must have integral or boolean type"),
    ("imag", ["t:f"], "imag not supported for non-complex tensors"),
    ("bitwise_and", ["t:f", "t:l"], "Integer or boolean input is required for"),
    ("bitwise_left_shift", ["t:b", "t:b"], "input must have integral type"),
    ("bitwise_right_shift", ["t:f", "2"], "input must have integral type"),
    ("gcd", ["t:f", "t:f"], "input must have integral type"),
    ("logical_right_shift", ["t:f", "2"], "input must have integral type"),
    ("mod", ["t:f", "t:f"], "input must have integral type"),
    ("nextafter", ["t:l", "t:l"], "Promoted type must be single or double precision float"),
    ("nextafter", ["t:cf", "t:f"], "Promoted type must be single or double precision float"),
    ("complex", ["t:f", "t:d"], "complex: lhs and rhs must both be Float or both Double"),
    ("lt", ["t:cf", "t:f"], "floating or integer or Bool operands, got lhs of DataType.Complex"),
    ("exp2", ["t:cf"], "exp2: expected floating operands"),
    ("neg", ["t:b"], "neg: expected"),
    ("clamp", ["t:b", "2", "2"], "clamp: expected"),
    ("sign", ["t:cf"], "sign: expected"),
]  # fmt: skip


@pytest.mark.parametrize(("op", "operands", "fragment"), REFUSED)
def test_kinds_that_an_op_has_no_meaning_for(op: str, operands: list[str], fragment: str) -> None:
    with FusionDefinition() as fd:
        values = [operand(fd, text) for text in operands]
        with pytest.raises(RuntimeError, match=fragment) as caught:
            getattr(fd.ops, op)(*values)
    assert isinstance(caught.value, DefinitionError)
    assert op in str(caught.value)


@pytest.mark.parametrize(
    ("op", "operands"),
    [
        ("add", ["t:f", "text"]),
        ("add", ["t:f", None]),
        ("add", ["t:f", 2**64]),
        ("add", ["t:f", DataType.Float]),
        ("add", ["t:f"]),
        ("complex", ["t:f", "2.5"]),
        ("complex", ["t:f", "s:f"]),
        ("clamp", ["t:f", "t:f", "2"]),
        ("threshold", ["t:f", None, "2"]),
        ("addcmul", ["t:f", "t:f", "t:f", "t:f"]),
    ],
)
def test_wrong_python_types_are_type_errors(op: str, operands: list[Any]) -> None:
    with FusionDefinition() as fd:
        values = [operand(fd, v) if isinstance(v, str) and v != "text" else v for v in operands]
        with pytest.raises(TypeError) as caught:
            getattr(fd.ops, op)(*values)
    assert isinstance(caught.value, DefinitionTypeError)
    assert str(caught.value).startswith(f"{op}(): incompatible function arguments")


def test_operands_are_positional_only() -> None:
    with FusionDefinition() as fd:
        x = tensor(fd, DataType.Float)
        for call in (
            lambda: fd.ops.add(lhs=x, rhs=x),
            lambda: fd.ops.exp(x=x),
            lambda: fd.ops.where(cond=x, x=x, y=x),
            lambda: fd.ops.shape(arg=x),
        ):
            with pytest.raises(TypeError):
                call()


# --- cast ---


def test_any_pair_of_types_casts() -> None:
    for source, target in itertools.product(NAMES.values(), repeat=2):
        with FusionDefinition() as fd:
            x = tensor(fd, source)
            if is_complex(source) and not is_complex(target) and target is not DataType.Bool:
                with pytest.warns(UserWarning, match="drops the imaginary part"):
                    y = fd.ops.cast(x, target)
            else:
                y = fd.ops.cast(x, dtype=target)
        assert y is not x
        assert y.dtype_ is target
        assert y.definition().op == ("set" if source is target else "cast")


def test_cast_of_scalars_and_refusals() -> None:
    with FusionDefinition() as fd:
        assert fd.ops.cast(3, DataType.Float).dtype_ is DataType.Float
        assert not fd.ops.cast(fd.define_scalar(), DataType.Int).is_tensor()
        with pytest.raises(DefinitionError, match=r"cast: dtype DataType\.Null is not supported"):
            fd.ops.cast(3, DataType.Null)
        with pytest.raises(DefinitionTypeError, match=r"cast\(\): incompatible"):
            fd.ops.cast(3, float)


# --- sizes of pointwise results ---


def sizes(fd: Any, *shapes: list[int]) -> TensorView:
    result = fd.define_tensor(shapes[0])
    for shape in shapes[1:]:
        result = fd.ops.add(result, fd.define_tensor(shape))
    return result  # type: ignore[no-any-return]


def test_static_extents_are_preferred_to_symbolic_ones() -> None:
    with FusionDefinition() as fd:
        result = sizes(fd, [-1, -1, 1], [4, 1, 1])
    assert [axis.size().value for axis in result.logical] == [4, None, 1]
    assert [axis.kind for axis in result.logical] == ["i", "i", "b"]


def test_static_extents_that_differ_are_refused_with_names() -> None:
    fragment = r"add: Expected sizes to match, but dim 1 is 3 in tv0 .* and 4 in tv1"
    with FusionDefinition() as fd, pytest.raises(DefinitionError, match=fragment):
        sizes(fd, [2, 3], [2, 4])


def test_expanded_extents_are_kept_and_checked() -> None:
    with FusionDefinition() as fd:
        a = fd.define_tensor([3], [None])
        both = fd.ops.add(a, fd.define_tensor([1]))
        assert str(both.axis(0)) == "bS2{1 ex 3}"
        mixed = fd.ops.add(a, fd.define_tensor([-1]))
        assert mixed.axis(0).kind == "i"
        assert mixed.axis(0).extent().value == 3
        with pytest.raises(DefinitionError, match="Expected sizes to match"):
            fd.ops.add(a, fd.define_tensor([4]))


def test_every_row_defines_its_own_expression() -> None:
    """Each row, in each kind it claims, defines an expression of its name in that kind."""
    samples = {
        "f": DataType.Float,
        "i": DataType.Int32,
        "b": DataType.Bool,
        "c": DataType.ComplexFloat,
    }
    for row in ROWS.values():
        for letter in row.kinds:
            with FusionDefinition() as fd:
                dtype = samples[letter]
                values: list[Any] = [tensor(fd, dtype) for _ in row.args]
                if row.rule == "select":
                    values[0] = tensor(fd, DataType.Bool)
                if row.rule == "bounded":
                    values[1:] = [1] * (row.arity - 1)
                result = getattr(fd.ops, row.name)(*values)
            expr = result.definition()
            assert expr.op == row.name
            if not (row.rule == "float" and not is_floating(dtype) and not is_complex(dtype)):
                assert expr.operand_dtype is dtype
