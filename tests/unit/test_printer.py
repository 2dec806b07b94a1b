"""Printed forms: `repr(fd)`, which must define the same fusion again, print_math, and nodes."""

# ruff: noqa: E501 (tables of cases read best with one case a line)

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from fuser_direct import DataType, FusionDefinition, define_scalar, translate_fusion
from fuser_direct.ops.table import ROWS


def executed(text: str) -> FusionDefinition:
    """The definition that the printed text makes."""
    names: dict[str, Any] = {"FusionDefinition": FusionDefinition, "DataType": DataType}
    exec(text, names)
    with FusionDefinition() as fd:
        names["nvfuser_fusion"](fd)
    return fd


def check_round_trip(fd: FusionDefinition) -> str:
    text = repr(fd)
    again = executed(text)
    assert again.fusion == fd.fusion, f"{text}\n{again!r}"
    # Names may shift the first time, where unused values had numbers; then the text is stable.
    third = executed(repr(again))
    assert repr(third) == repr(again)
    return text


def body(fd: FusionDefinition) -> list[str]:
    """The statements, after checking the frame."""
    head, *lines = repr(fd).split("\n")
    assert head == "def nvfuser_fusion(fd : FusionDefinition) -> None :"
    assert lines[-1] == ""
    assert all(line.startswith("    ") and not line.startswith("     ") for line in lines[:-1])
    return [line.strip() for line in lines[:-1]]


def test_add_of_two_tensors() -> None:
    with FusionDefinition() as fd:
        a, b = fd.define_tensor([-1, -1], True), fd.define_tensor([-1, -1], True)
        t2 = fd.ops.add(a, b)
        t3 = fd.ops.mul(t2, 3.0)
        fd.add_output(fd.ops.sum(t3, dim=-1))
    assert repr(fd) == (
        "def nvfuser_fusion(fd : FusionDefinition) -> None :\n"
        "    tv0 = fd.define_tensor(shape=[-1, -1], contiguity=[True, True], dtype=DataType.Float, is_cpu=False)\n"
        "    tv1 = fd.define_tensor(shape=[-1, -1], contiguity=[True, True], dtype=DataType.Float, is_cpu=False)\n"
        "    tv2 = fd.ops.add(tv0, tv1)\n"
        "    tv3 = fd.ops.mul(tv2, 3.00000)\n"
        "    tv4 = fd.ops.sum(tv3, dims=[1], dtype=DataType.Float)\n"
        "    fd.add_output(tv4)\n"
    )  # fmt: skip
    assert str(fd) == repr(fd)
    assert fd.fusion is not None
    assert translate_fusion(fd.fusion) == repr(fd)
    check_round_trip(fd)


def test_expressions_print_depth_first_from_the_outputs() -> None:
    # The squeeze example of the peer's tests.
    with FusionDefinition() as fd:
        t0 = fd.define_tensor([-1])
        t1, t2 = fd.define_tensor([-1, 1]), fd.define_tensor([-1, 1, 1], [True, None, None])
        t3 = fd.ops.squeeze(t1, [1])
        t4 = fd.ops.squeeze(t2, [1])
        t5 = fd.ops.sum(t4, [1])
        t6 = fd.ops.mul(t0, t3)
        t7 = fd.ops.mul(t6, t5)
        fd.add_output(t7)
    defined = [line.split(" = ")[0] for line in body(fd) if " = fd.ops" in line]
    # The sum is over a broadcast, so it is a squeeze.
    assert defined == ["tv3", "tv6", "tv4", "tv5", "tv7"]
    assert "tv5 = fd.ops.squeeze(tv4, dims=[1])" in body(fd)
    check_round_trip(fd)


def test_half_add_is_cast_cast_add_and_unused_ops_do_not_print() -> None:
    with FusionDefinition() as fd:
        a, b = (
            fd.define_tensor([2], dtype=DataType.Half),
            fd.define_tensor([2], dtype=DataType.Half),
        )
        fd.ops.exp(a)
        fd.add_output(fd.ops.add(a, b))
    assert body(fd)[2:] == [
        "tv4 = fd.ops.cast(tv0, dtype=DataType.Float)",
        "tv5 = fd.ops.cast(tv1, dtype=DataType.Float)",
        "tv6 = fd.ops.add(tv4, tv5)",
        "fd.add_output(tv6)",
    ]


def test_inputs_print_what_was_declared() -> None:
    with FusionDefinition() as fd:
        fd.define_tensor([-1, 1, 5, 0], [True, None, False, True], DataType.Int)
        fd.define_tensor([-1, 7], [None, None], stride_order=[0, 1])
        fd.define_scalar(DataType.Int)
        fd.add_output(fd.define_tensor([], dtype=DataType.Bool, is_cpu=True))
    # Extents of the first tensor take c0 to c3 (the axes' start of 0 is the extent 0, too), and so on.
    assert body(fd) == [
        "tv0 = fd.define_tensor(shape=[-1, 1, 5, 0], contiguity=[True, None, False, True], dtype=DataType.Int, is_cpu=False)",
        "tv1 = fd.define_tensor(shape=[-1, 7], contiguity=[None, None], dtype=DataType.Float, is_cpu=False, stride_order=[0, 1])",
        "c6 = fd.define_scalar(None, dtype=DataType.Int)",
        "tv2 = fd.define_tensor(shape=[], contiguity=[], dtype=DataType.Bool, is_cpu=True)",
        "fd.add_output(tv2)",
    ]  # fmt: skip
    check_round_trip(fd)


@pytest.mark.parametrize(
    ("shapes", "name"),
    [([[-1]], "d2"), ([[-1, -1]], "d3"), ([[]], "d0"), ([[-1, -1], [-1]], "d4"), ([[3, 1]], "d3")],
)
def test_scalars_share_one_counter_with_extents_and_hidden_constants(
    shapes: list[list[int]], name: str
) -> None:
    with FusionDefinition() as fd:
        for shape in shapes:
            fd.define_tensor(shape)
        assert str(fd.define_scalar()) == name


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (3.0, "3.00000"),
        (0.1, "0.100000"),
        (1e-5, "1.00000e-05"),
        (2.5, "2.50000"),
        (-0.0, "-0.00000"),
        (1234567.0, "1234567.0"),
        (1 / 3, "0.3333333333333333"),
        (1e300, "1.00000e+300"),
        (math.inf, 'float("inf")'),
        (-math.inf, 'float("-inf")'),
        (math.nan, 'float("nan")'),
        (3 + 0.5j, "3.00000+0.500000j"),
        (3 - 0.5j, "3.00000+-0.500000j"),
        (complex(-0.0, 1), "complex(-0.00000, 1.00000)"),
        (complex(math.inf, math.nan), 'complex(float("inf"), float("nan"))'),
    ],
)
def test_constants_print_exactly(value: Any, text: str) -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1], dtype=DataType.ComplexDouble)
        y = fd.define_tensor([-1], dtype=DataType.Double)
        fd.add_output(fd.ops.mul(x if isinstance(value, complex) else y, value))
    assert f", {text})" in repr(fd)
    check_round_trip(fd)


def test_ints_and_typed_constants() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1], dtype=DataType.Int)
        y = fd.ops.add(x, -3)
        f = fd.define_tensor([-1])
        z = fd.ops.add(f, fd.define_scalar(2, DataType.Float))
        fd.add_output(fd.ops.where(fd.ops.lt(y, 2**40), z, 1))
    text = check_round_trip(fd)
    assert "fd.ops.add(tv0, -3)" in text
    assert f"fd.ops.lt(tv1, {2**40})" in text
    assert "= fd.define_scalar(2.00000, dtype=DataType.Float)\n" in text


def test_bool_constants_print_in_place_only_where_they_stay_bool() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1], dtype=DataType.Bool)
        yes = fd.define_scalar(1, DataType.Bool)
        fd.add_output(fd.ops.logical_and(x, yes))
        fd.add_output(fd.ops.where(yes, x, fd.ops.full([3], 0, DataType.Bool)))
        fd.add_output(fd.ops.eq(x, yes))
    text = check_round_trip(fd)
    assert "fd.ops.logical_and(tv0, True)" in text
    assert "fill_value=False" in text
    assert "= fd.define_scalar(True, dtype=DataType.Bool)" in text


def test_extents_print_as_sizes_of_the_first_tensor_that_has_them() -> None:
    with FusionDefinition() as fd:
        x, y = fd.define_tensor([-1, -1]), fd.define_tensor([1, -1])
        fd.add_output(fd.ops.expand(y, [x.size(0), -1]))
        fd.add_output(fd.ops.mul(x, fd.ops.mul(y.size(1), 2)))
    lines = body(fd)
    assert "c0 = fd.ops.size(tv0, dim=0)" in lines
    assert "c4 = fd.ops.size(tv1, dim=1)" in lines
    assert "tv2 = fd.ops.expand(tv1, shape=[c0, c4])" in lines
    check_round_trip(fd)


def test_symbol_without_a_source_prints_as_a_scalar() -> None:
    # Such a fusion can't be executed; the printed form makes an input of the symbol.
    with FusionDefinition() as fd:
        unknown = define_scalar(DataType.Index)
        fd.add_output(fd.ops.full([unknown], 1.0, DataType.Float))
    assert body(fd)[0] == f"c{unknown.number} = fd.define_scalar(None, dtype=DataType.Index)"


PATTERNS: list[tuple[Callable[[Any, Any], Any], str]] = [
    (lambda fd, x: fd.ops.relu(x), "tv1 = fd.ops.relu(tv0)"),
    (lambda fd, x: fd.ops.cast(x, DataType.Half), "tv1 = fd.ops.cast(tv0, dtype=DataType.Half)"),
    (lambda fd, x: fd.ops.set(x), "tv1 = fd.ops.cast(tv0, dtype=DataType.Float)"),
    (lambda fd, x: fd.ops.permute(x, [-1, 0, 1]), "tv1 = fd.ops.permute(tv0, dims=[2, 0, 1])"),
    (lambda fd, x: fd.ops.stride_order(x, [0, 1, 2]), "tv1 = fd.ops.stride_order(tv0, stride_order=[0, 1, 2])"),
    (lambda fd, x: fd.ops.stride_order(x, [2, 1, 0]), "tv1 = fd.ops.stride_order(tv0, stride_order=[2, 1, 0])"),
    (lambda fd, x: fd.ops.sum(x, [-1, 0]), "tv1 = fd.ops.sum(tv0, dims=[0, 2], dtype=DataType.Float)"),
    (lambda fd, x: fd.ops.prod(x, [2], dtype=DataType.Double), "tv2 = fd.ops.prod(tv1, dims=[2], dtype=DataType.Double)"),
    (lambda fd, x: fd.ops.max(x, 0), "tv1 = fd.ops.max(tv0, dims=[0])"),
    (lambda fd, x: fd.ops.min(x, [0], keepdim=True), "tv2 = fd.ops.broadcast(tv1, is_broadcast_dim=[True, False, False])"),
    (lambda fd, x: fd.ops.welford(x, [0])[1], "tv1, tv2, tv3 = fd.ops.welford(tv0, dims=[0])"),
    (lambda fd, x: fd.ops.var_mean(x, [0])[0], "tv1, tv2, tv3 = fd.ops.welford(tv0, dims=[0])"),
    (lambda fd, x: fd.ops.broadcast(x, [True, False, False, False]), "tv1 = fd.ops.broadcast(tv0, is_broadcast_dim=[True, False, False, False])"),
    (lambda fd, x: fd.ops.expand(x, [-1, -1, 7]), "tv1 = fd.ops.expand(tv0, shape=[c0, c1, 7])"),
    (lambda fd, x: fd.ops.squeeze(fd.ops.sum(x, [0], keepdim=True), [0]), "tv3 = fd.ops.squeeze(tv2, dims=[0])"),
    (lambda fd, x: fd.ops.full([2, 2], 1, DataType.Float), "tv1 = fd.ops.full(shape=[2, 2], fill_value=1.00000, dtype=DataType.Float)"),
    (lambda fd, x: fd.ops.iota(4), "tv1 = fd.ops.iota(length=4, start=0, step=1)"),
    (lambda fd, x: fd.ops.iota(4, 1, 2, DataType.Int32), "tv1 = fd.ops.iota(length=4, start=1, step=2, dtype=DataType.Int32)"),
    (lambda fd, x: fd.ops.clamp(x, None, 1), 'tv1 = fd.ops.clamp(tv0, float("-inf"), 1.00000)'),
    (lambda fd, x: fd.ops.truediv(x, 2), "tv1 = fd.ops.div(tv0, 2.00000)"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "line"), PATTERNS, ids=[line for _, line in PATTERNS])
def test_statement(make: Callable[[Any, Any], Any], line: str) -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1, 1 if "expand" in line else -1])
        fd.add_output(make(fd, x))
    assert line in body(fd)
    check_round_trip(fd)


def test_squeeze_of_an_expansion_says_so() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, 3], [True, None])
        fd.add_output(fd.ops.squeeze(x, [1], squeeze_expanded=True))
        fd.add_output(fd.ops.sum(x, [1]))
    assert body(fd)[1] == "tv1 = fd.ops.squeeze(tv0, dims=[1], squeeze_expanded=True)"
    check_round_trip(fd)


def test_broadcast_in_dim_without_new_axes_prints_as_expand() -> None:
    with FusionDefinition() as a:
        a.add_output(a.ops.expand(a.define_tensor([1, -1]), [4, -1]))
    with FusionDefinition() as b:
        b.add_output(b.ops.broadcast_in_dim(b.define_tensor([1, -1]), [4, -1], [0, 1]))
    assert repr(a) == repr(b)
    assert a.fusion == b.fusion
    with FusionDefinition() as c:
        c.add_output(c.ops.broadcast_in_dim(c.define_tensor([-1]), [4, -1], [1]))
    assert body(c)[1] == "tv1 = fd.ops.broadcast(tv0, is_broadcast_dim=[True, False])"
    assert body(c)[3] == "tv2 = fd.ops.expand(tv1, shape=[4, c0])"


def test_aliases_print_once_before_the_visible_occurrences() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1])
        y, z = fd.ops.neg(x), fd.ops.exp(x)
        for arguments in ((y,), (y, x), (y,), (x,), (z, x)):
            fd.add_output(*arguments)
    assert body(fd)[-5:] == [
        "fd.add_output(tv1, tv0)",
        "fd.add_output(tv1)",
        "fd.add_output(tv1)",
        "fd.add_output(tv0)",
        "fd.add_output(tv2, tv0)",
    ]
    check_round_trip(fd)


@pytest.mark.parametrize("row", ROWS.values(), ids=lambda row: row.name)
def test_every_row_goes_round(row: object) -> None:
    row = ROWS[row.name]  # type: ignore[attr-defined]
    letters = {
        "f": DataType.Float,
        "i": DataType.Int32,
        "b": DataType.Bool,
        "c": DataType.ComplexDouble,
    }
    for letter in row.kinds:
        with FusionDefinition() as fd:
            values: list[Any] = [fd.define_tensor([-1], dtype=letters[letter]) for _ in row.args]
            if row.rule == "select":
                values[0] = fd.ops.lt(fd.define_scalar(), 2)
            if row.rule == "bounded":
                values[1:] = [fd.define_scalar(DataType.Int), 1]
            fd.add_output(getattr(fd.ops, row.name)(*values))
        assert f"fd.ops.{row.name}(" in check_round_trip(fd)


COMPOSITES: list[Callable[[Any, Any], Any]] = [
    lambda fd, x: fd.ops.var(x, [0, 1]),
    lambda fd, x: fd.ops.var(x, [1], correction=0, keepdim=True),
    lambda fd, x: fd.ops.var_mean(x, [1], keepdim=True)[0],
    lambda fd, x: fd.ops.sign(x),
    lambda fd, x: fd.ops.sign(fd.ops.cast(x, DataType.Half)),
    lambda fd, x: fd.ops.logical_right_shift(fd.ops.cast(x, DataType.Int32), 5),
    lambda fd, x: fd.ops.logical_right_shift(fd.ops.cast(x, DataType.Int32), fd.define_scalar(DataType.Int)),
    lambda fd, x: fd.ops.logical_right_shift(fd.ops.cast(x, DataType.Int), fd.ops.cast(x, DataType.Int)),
    lambda fd, x: fd.ops.addcmul(x, x, x, 0.5),
    lambda fd, x: fd.ops.var(fd.ops.cast(x, DataType.ComplexFloat), [0]),
    lambda fd, x: fd.ops.var_mean(fd.ops.cast(x, DataType.ComplexFloat), [0])[1],
]  # fmt: skip


@pytest.mark.parametrize("make", COMPOSITES, ids=range(len(COMPOSITES)))
@pytest.mark.parametrize("shape", [[-1, -1], [3, 1], [0, 4]], ids=str)
def test_composites_go_round(make: Callable[[Any, Any], Any], shape: list[int]) -> None:
    with FusionDefinition() as fd:
        fd.add_output(make(fd, fd.define_tensor(shape)))
    check_round_trip(fd)


def test_nothing_defined_prints_something() -> None:
    fd = FusionDefinition()
    assert repr(fd) == "<FusionDefinition without a definition>"
    with fd:
        pass
    assert executed(repr(fd)).fusion == fd.fusion


# --- nodes and math ---


def test_node_texts() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([2, -1, 1, 5], [True, True, None, None], DataType.Half)
        s = fd.ops.sum(x, [0, 1])
        n = fd.define_scalar(DataType.Int)
        assert (
            str(x) == "T0_l___half[iS0{2}, iS1{i1}, bS2{1}, bS3{1 ex 5}]" or fd.fusion is not None
        )
        fd.add_output(s)
    assert str(x) == "T0_g___half[iS0{2}, iS1{i1}, bS2{1}, bS3{1 ex 5}]"
    assert str(s) == "T1_g___half[rS4{2}, rS5{i1}, bS6{1}, bS7{1 ex 5}]"
    assert repr(s.axis(0)) == "rS4{2}"
    assert s.axis(0).is_reduction()
    assert str(s.domain()) == "[rS4{2}, rS5{i1}, bS6{1}, bS7{1 ex 5}]"
    assert str(n) == f"i{n.number}"


@pytest.mark.parametrize(
    ("dtype", "text"),
    [
        (DataType.Double, "double"),
        (DataType.Float, "float"),
        (DataType.Half, "__half"),
        (DataType.BFloat16, "__bfloat"),
        (DataType.Int, "int64_t"),
        (DataType.Int32, "int"),
        (DataType.Index, "nvfuser_index_t"),
        (DataType.Bool, "bool"),
        (DataType.ComplexFloat, "std::complex<float>"),
        (DataType.ComplexDouble, "std::complex<double>"),
    ],
)
def test_dtype_spelling_of_tensors(dtype: DataType, text: str) -> None:
    with FusionDefinition() as fd:
        assert str(fd.define_tensor([2], dtype=dtype)) == f"T0_g_{text}[iS0{{2}}]"


def test_print_math() -> None:
    with FusionDefinition() as fd:
        x, y = fd.define_tensor([2, 4]), fd.define_tensor([2, 4])
        total = fd.ops.add(x, y)
        fd.ops.exp(x)
        fd.add_output(fd.ops.exp(fd.ops.sum(total, [1])))
    assert fd.fusion is not None
    frame = (
        "Inputs:\n"
        "  T0_g_float[iS0{2}, iS1{4}]\n"
        "  T1_g_float[iS2{2}, iS3{4}]\n"
        "Outputs:\n"
        "  T5_g_float[iS10{2}]\n"
        "\n"
        "%kernel_math {\n"
    )
    assert fd.fusion.print_math() == (
        f"{frame}"
        "T2_l_float[iS4{2}, iS5{4}]\n"
        "   = T0_g_float[iS0{2}, iS1{4}]\n"
        "   + T1_g_float[iS2{2}, iS3{4}];\n"
        "T4_l_float[iS8{2}, rS9{4}]\n"
        "   = reduction( T2_l_float[iS4{2}, iS5{4}], op = add, initial value = float(0), allreduce = false );\n"
        "T5_g_float[iS10{2}]\n"
        "   = expf(T4_l_float[iS8{2}, rS9{4}]);\n"
        "} // %kernel_math \n"
        "\n"
    )  # fmt: skip
    everything = fd.fusion.print_math(from_outputs_only=False)
    assert everything.startswith(frame)
    assert "T3_l_float[iS6{2}, iS7{4}]\n   = expf(T0_g_float[iS0{2}, iS1{4}]);\n" in everything


def test_print_math_styles() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([3, 1])
        s = fd.define_scalar()
        o = fd.ops
        outputs = [
            o.mul(x, 3.0), o.add(x, o.mul(s, 2.5)), o.cast(x, DataType.Half), o.set(x), o.permute(x, [1, 0]),
            o.broadcast(x, [True, False, False]), o.squeeze(x, [1]), o.expand(x, [3, 4]), o.neg(x), o.where(o.lt(x, s), x, 1),
            o.exp(o.cast(x, DataType.Double)), o.max(x, [0]), o.full([2], 1, DataType.Int), o.iota(3), o.round(x),
            o.welford(x, [0])[0], o.prod(o.cast(x, DataType.Int), [0]), o.stride_order(x, [0, 1]), o.segment_set(x),
        ]  # fmt: skip
        for output in outputs:
            fd.add_output(output)
    assert fd.fusion is not None
    text = fd.fusion.print_math()
    for piece in [
        "\n   * double(3);\n",
        "\n   + ( d3 * double(2.5) );\n",
        "\n   = __to_half(T0_g_float[iS0{3}, bS1{1}]);\n",
        "\n   = Set( T0_g_float[iS0{3}, bS1{1}] );\n",
        "\n   = SegmenterSet( T0_g_float[iS0{3}, bS1{1}] );\n",
        "\n   = Set.Permute( T0_g_float[iS0{3}, bS1{1}], ",
        "\n   = broadcast( T0_g_float[iS0{3}, bS1{1}], flags = {true, false, false} );\n",
        "\n   = squeeze( T0_g_float[iS0{3}, bS1{1}], flags = {false, true} );\n",
        "] = expand( T0_g_float[iS0{3}, bS1{1}], {3, 4} )\n",
        "\n   = -T0_g_float[iS0{3}, bS1{1}];\n",
        "\n   < d3;\n",
        "\n   = exp(T",
        "op = fmax, initial value = float(-inf)",
        "op = mul, initial value = 1,",
        "\n   = full({2}, 1);\n",
        "\n   = iota(3, 0, 1);\n",
        "\n   = nearbyintf(T0_g_float[iS0{3}, bS1{1}]);\n",
        " = Welford ( T0_g_float[iS0{3}, bS1{1}](Avg), allreduce = false )\n",
    ]:
        assert piece in text, piece
    assert str(fd.fusion) == text
