"""The graph that a definition builds: nodes, operators, and the key that tells graphs apart."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fuser_direct
from fuser_direct import BroadcastOp, DataType, Fusion, FusionDefinition, SqueezeOp
from fuser_direct.ir.walk import needed_exprs


def make_unary() -> tuple[FusionDefinition, Any, Any]:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1])
        y = fd.ops.neg(x)
    return fd, x, y


# --- graph ---


def test_values_stay_readable_after_the_block() -> None:
    fd, x, y = make_unary()
    assert str(x) == "T0_g_float[iS0{i0}, iS1{i1}]"
    assert str(y.domain()) == "[iS2{i0}, iS3{i1}]"
    assert x.ndim == 2
    assert x.shape() == [x.size(0), x.size(-1)]
    assert y.axis(-1) is y.get_loop_domain()[1]
    assert not x.has_root()
    assert "define_tensor" in repr(fd)


def test_definition_and_uses_lead_through_the_graph() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, 1])
        squared = fd.ops.mul(x, x)
        wide = fd.ops.broadcast(x, [True, False, False])
        narrow = fd.ops.squeeze(wide, [0])
    assert x.definition() is None
    assert squared.definition().input(0) is x
    assert squared.definition().output(0) is squared
    assert x.uses() == [squared.definition(), wide.definition()]
    assert type(wide.definition()) is BroadcastOp
    assert type(narrow.definition()) is SqueezeOp
    assert squared.definition().location[0].endswith("test_fusion_graph.py")


def test_equality_of_nodes_is_identity() -> None:
    with FusionDefinition() as fd:
        x, y = fd.define_tensor([-1]), fd.define_tensor([-1])
        three, also_three = fd.define_scalar(3), fd.define_scalar(3)
    assert x == x
    assert x != y
    assert three != also_three
    assert len({x, y, three, also_three}) == 4


def test_labels_name_values_as_the_printed_definition_does() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, 1, 5, 7], [True, None, True, None], DataType.BFloat16)
        s = fd.define_scalar(DataType.Int)
    assert x.label == "tv0 (BFloat16 [-1, 1, 5, 7])"
    assert s.label == f"c{s.number} (Int)"
    with fd:
        assert fd.define_scalar(2.5).label == "2.5"


def test_operators_build_the_same_graph_as_ops() -> None:
    with FusionDefinition() as fd:
        x, s = fd.define_tensor([-1]), fd.define_scalar(DataType.Double)
        y = abs(-((2 - x) * s + 1.5) / x) ** 2 % 3
        fd.add_output(y)
    with FusionDefinition() as by_ops:
        x, s = by_ops.define_tensor([-1]), by_ops.define_scalar(DataType.Double)
        o = by_ops.ops
        t = o.neg(o.add(o.mul(o.sub(2, x), s), 1.5))
        by_ops.add_output(o.remainder(o.pow(o.abs(o.truediv(t, x)), 2), 3))
    assert fd.fusion == by_ops.fusion


def test_numpy_numbers_are_numbers() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1])
        for value, dtype in ((np.float32(2), DataType.Double), (np.int32(2), DataType.Int)):
            for y in (fd.ops.add(x, value), x + value, value + x):
                constant = next(v for v in y.definition().ins if v is not x)
                assert constant.value == 2
                # Ints become the tensor's kind, float, when they meet it.
                assert constant.dtype_ is DataType.Double
            assert fd.define_scalar(value).dtype_ is dtype


def test_comparisons_have_no_truth_value() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1])
        with pytest.raises(TypeError, match=r"use fd\.ops\.where"):
            bool(x < 2)
    assert bool(x)


# --- key ---


def define(**changes: Any) -> FusionDefinition:
    """A small fusion with one property changed."""
    with FusionDefinition() as fd:
        x = fd.define_tensor(
            changes.get("shape", [-1, -1]),
            changes.get("contiguity", True),
            changes.get("dtype", DataType.Float),
            stride_order=changes.get("stride_order", []),
        )
        s = fd.define_scalar(changes.get("scalar", DataType.Double))
        y = getattr(fd.ops, changes.get("op", "add"))(x, changes.get("constant", 2.0))
        z = fd.ops.sum(fd.ops.mul(y, s), changes.get("dims", [0]))
        fd.add_output(z)
        if changes.get("second"):
            fd.add_output(y)
        if changes.get("alias"):
            fd.add_output(y, x)
    return fd


def test_equal_definitions_have_equal_keys_and_hashes() -> None:
    a, b = define(), define()
    assert a.fusion is not None
    assert b.fusion is not None
    assert a.fusion == b.fusion
    assert (a.fusion != b.fusion) is False
    assert hash(a.fusion.key()) == hash(b.fusion.key())
    with pytest.raises(TypeError, match="unhashable"):
        hash(a.fusion)


@pytest.mark.parametrize(
    "change",
    [
        {"shape": [-1, 4]},
        {"shape": [4, 4]},
        {"shape": [-1, 1]},
        {"contiguity": False},
        {"contiguity": [True, False]},
        {"contiguity": [True, None]},
        {"dtype": DataType.Double},
        {"stride_order": [0, 1]},
        {"scalar": DataType.Float},
        {"op": "sub"},
        {"constant": 2.5},
        {"constant": float("nan")},
        {"constant": 0.0},
        {"constant": -0.0},
        {"constant": 2 + 0j},
        {"dims": [1]},
        {"second": True},
        {"alias": True},
    ],
    ids=str,
)
def test_every_property_is_in_the_key(change: dict[str, Any]) -> None:
    changed = define(**change)
    assert changed.fusion != define().fusion
    assert changed.fusion == define(**change).fusion


def test_signed_zeros_and_nans_in_the_key() -> None:
    assert define(constant=0.0).fusion != define(constant=-0.0).fusion
    assert define(constant=float("nan")).fusion == define(constant=float("nan")).fusion
    assert define(constant=complex(0, -0.0)).fusion != define(constant=0j).fusion


def test_unused_expressions_and_order_of_calls_are_not_in_the_key() -> None:
    with FusionDefinition() as a:
        x = a.define_tensor([-1])
        a.ops.exp(x)
        p, q = a.ops.sin(x), a.ops.cos(x)
        a.add_output(a.ops.add(p, q))
    with FusionDefinition() as b:
        x = b.define_tensor([-1])
        q, p = b.ops.cos(x), b.ops.sin(x)
        b.add_output(b.ops.add(p, q))
    assert a.fusion == b.fusion


def test_outputs_that_feed_others_start_no_walk() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1])
        first = fd.ops.neg(x)
        last = fd.ops.add(fd.ops.exp(x), first)
        fd.add_output(first)
        fd.add_output(last)
    assert fd.fusion is not None
    assert [expr.op for expr in needed_exprs(fd.fusion)] == ["exp", "neg", "add"]


def test_which_extent_is_used_is_in_the_key() -> None:
    def with_extent(dim: int) -> Fusion | None:
        with FusionDefinition() as fd:
            x = fd.define_tensor([-1, -1])
            fd.add_output(fd.ops.mul(x, x.size(dim)))
        return fd.fusion

    assert with_extent(0) == with_extent(0)
    assert with_extent(0) != with_extent(1)


def test_order_of_updates_of_one_input_is_in_the_key() -> None:
    def updates(first: int) -> Fusion | None:
        with FusionDefinition() as fd:
            x = fd.define_tensor([-1])
            results = [fd.ops.sin(x), fd.ops.cos(x)]
            for result in results:
                fd.add_output(result)
            fd.add_output(results[first], x)
            fd.add_output(results[1 - first], x)
        return fd.fusion

    assert updates(0) == updates(0)
    assert updates(0) != updates(1)


def test_key_follows_changes() -> None:
    fd = define()
    assert fd.fusion is not None
    key = fd.fusion.key()
    assert fd.fusion.key() is key
    fd.add_output(fd.fusion.outputs()[0])
    assert fd.fusion.key() != key


def test_long_chains_need_no_recursion() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1])
        for _ in range(3000):
            x = fd.ops.neg(x)
        fd.add_output(x)
    assert fd.fusion is not None
    assert len(fd.fusion.key()[1]) == 3000  # type: ignore[index]
    assert repr(fd).count("fd.ops.neg") == 3000


def test_shared_subgraphs_are_walked_once() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1])
        # 2**60 paths lead from the output to the input.
        for _ in range(60):
            x = fd.ops.add(x, x)
        fd.add_output(x)
    assert fd.fusion is not None
    assert len(fd.fusion.key()[1]) == 60  # type: ignore[index]


# --- module ---


def test_public_names_exist_and_unknown_ones_do_not() -> None:
    for name in fuser_direct.__all__:
        assert getattr(fuser_direct, name) is not None
        assert name in dir(fuser_direct)
    assert not hasattr(fuser_direct, "FusionCache")


def test_version_compares_by_release() -> None:
    version = fuser_direct.version()
    assert version is fuser_direct.__version__
    assert isinstance(version, str)
    assert version > "0.0.99"
    assert version == f"{version}+git1234567"
    assert version < "10.0"
    assert type(version)("0.10.0") > "0.9.1"
    with pytest.raises(ValueError, match="compares with"):
        _ = version < 3  # type: ignore[operator]
