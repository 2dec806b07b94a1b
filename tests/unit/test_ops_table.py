"""The op table and what is generated from it."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from fuser_direct import DataType, ops
from fuser_direct.dtypes import INFO
from fuser_direct.ops.stub import STUB, documentation, stub_text
from fuser_direct.ops.table import ROWS, result_dtype, supports
from fuser_direct.version import __version__

ROOT = Path(__file__).parents[2]

UNARY = """
abs acos acosh asin asinh atan atanh bitwise_not ceil cos cosh erf erfc erfcinv erfinv exp exp2
expm1 floor frac imag isfinite isinf isnan isneginf isposinf isreal lgamma log log10 log1p log2
logical_not neg real reciprocal relu round rsqrt segment_set set sigmoid sign signbit silu sin
sinh sqrt tan tanh trunc
"""
BINARY = """
add atan2 bitwise_and bitwise_left_shift bitwise_or bitwise_right_shift bitwise_xor complex div eq
fmod gcd ge gt le logical_and logical_or logical_right_shift lt maximum minimum mod mul ne
nextafter pow remainder sub truediv
"""
OTHER = """
where lerp clamp threshold addcmul sum prod max min var var_mean welford cast broadcast
broadcast_in_dim expand squeeze permute stride_order size shape full iota
"""


def test_all_ops_are_there() -> None:
    assert set(f"{UNARY} {BINARY} {OTHER}".split()) <= set(ops.__all__)
    assert len(set(ops.__all__)) == len(ops.__all__)
    for name in ops.__all__:
        function = getattr(ops, name)
        assert function.__name__ == name
        assert function.__doc__


@pytest.mark.parametrize("row", ROWS.values(), ids=lambda row: row.name)
def test_row_is_complete(row: object) -> None:
    row = ROWS[row.name]  # type: ignore[attr-defined]
    assert len(row.domains) == row.arity
    assert row.kinds
    assert set(row.kinds) <= set("fibc")
    assert len(set(row.kinds)) == len(row.kinds)
    assert row.doc.endswith(".")
    for letter, name in row.instead:
        assert letter in "fibc"
        assert name == "set" or name in ROWS
        # A kind is either computed by the row or handed to another op.
        assert letter not in row.kinds


@pytest.mark.parametrize("row", ROWS.values(), ids=lambda row: row.name)
def test_cuda_text_uses_every_operand(row: object) -> None:
    row = ROWS[row.name]  # type: ignore[attr-defined]
    text = row.cuda_text(["left", "middle", "right"][: row.arity])
    for name in ["left", "middle", "right"][: row.arity]:
        assert re.search(rf"\b{name}\b", text)
    assert "{" not in text


@pytest.mark.parametrize("row", ROWS.values(), ids=lambda row: row.name)
def test_signature_is_positional_only_with_the_row_s_names(row: object) -> None:
    row = ROWS[row.name]  # type: ignore[attr-defined]
    parameters = inspect.signature(getattr(ops, row.name)).parameters.values()
    assert tuple(parameter.name for parameter in parameters) == row.args
    assert {parameter.kind for parameter in parameters} == {inspect.Parameter.POSITIONAL_ONLY}
    assert row.doc in getattr(ops, row.name).__doc__


def test_half_types_are_evaluated_as_such_only_where_the_rule_keeps_them() -> None:
    assert supports(ROWS["ceil"], DataType.Half)
    assert supports(ROWS["where"], DataType.BFloat16)
    assert not supports(ROWS["add"], DataType.Half)
    assert not supports(ROWS["exp"], DataType.BFloat16)
    assert not supports(ROWS["nextafter"], DataType.ComplexFloat)
    assert supports(ROWS["nextafter"], DataType.Double)
    assert not supports(ROWS["ceil"], DataType.UInt64)


def test_result_dtypes() -> None:
    for dtype in INFO:
        assert result_dtype(ROWS["add"], dtype) is dtype
        assert result_dtype(ROWS["lt"], dtype) is DataType.Bool
    assert result_dtype(ROWS["abs"], DataType.ComplexDouble) is DataType.Double
    assert result_dtype(ROWS["abs"], DataType.Int32) is DataType.Int32
    assert result_dtype(ROWS["complex"], DataType.Float) is DataType.ComplexFloat


def test_stub_is_up_to_date() -> None:
    assert STUB.read_text() == stub_text(), "run: python -m fuser_direct.ops.stub"


def test_documentation_lists_every_op_once() -> None:
    lines = documentation().splitlines()[2:]
    assert len(lines) == len(ops.__all__)
    assert "| `add(lhs, rhs)` | lhs + rhs; of Bool: or. |" in lines


@pytest.mark.skipif(not (ROOT / "pyproject.toml").exists(), reason="not a source tree")
def test_version_is_that_of_the_project() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    declared = re.search(r'^version = "(.*)"$', text, re.MULTILINE)
    assert declared is not None
    assert declared.group(1) == str(__version__)
