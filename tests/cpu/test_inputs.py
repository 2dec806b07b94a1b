"""Bad input: each gets one clear error of our types (and the peer's) before anything runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from fuser_direct import DataType, FusionDefinition
from fuser_direct.errors import FuserError
from tests.support import counters, fusion_of

FLOAT, HALF, INT, DOUBLE = DataType.Float, DataType.Half, DataType.Int, DataType.Double


@dataclass(frozen=True, slots=True)
class BadInput:
    """A definition, inputs it must refuse, the built-in type of the error, and a fragment of its
    text (a regex).
    """

    name: str
    define: Callable[[Any], Any]
    inputs: Sequence[Any]
    fragment: str
    error: type[Exception] = RuntimeError


def _matrix(fd: Any) -> Any:
    return fd.ops.neg(fd.define_tensor([-1, -1]))


def _matrix_and_scalar(fd: Any) -> Any:
    return fd.ops.mul(fd.define_tensor([-1, -1]), fd.define_scalar(DOUBLE))


def _two_vectors(fd: Any) -> Any:
    return fd.ops.add(fd.define_tensor([-1]), fd.define_tensor([-1]))


def _f32(*shape: int) -> torch.Tensor:
    return torch.ones(shape)


_CONFLICT = (
    "When trying to propagate constant tensor sizes through the graph a conflict was found with "
    "2 different sizes across dimensions that are expected to match."
)

BAD_INPUTS = [
    BadInput(
        "too-few",
        _two_vectors,
        [_f32(3)],
        "KernelArgumentHolder contains less argument than kernel's input.",
    ),
    BadInput("too-many", _matrix, [_f32(3, 2), _f32(3, 2)], "got 2 arguments, but .* has 1 input"),
    BadInput(
        "scalar-for-tensor",
        _matrix,
        [2],
        "Expected input 0, .*, to be an at::Tensor but got scalar 2",
    ),
    BadInput(
        "tensor-for-scalar",
        lambda fd: fd.ops.mul(fd.define_tensor([-1]), fd.define_scalar(DOUBLE)),
        [_f32(5), _f32(5)],
        "Expected input 1, d2, to be a scalar but got float tensor of rank 1",
    ),
    BadInput(
        "wrong-dtype",
        _matrix,
        [_f32(3, 2).half()],
        "Expected input 0, .*, to be bound to a tensor of dtype float, but got a tensor of dtype "
        "__half",
    ),
    BadInput(
        "unsupported-dtype", _matrix, [_f32(3, 2).byte()], "to be bound to a tensor of dtype float"
    ),
    BadInput(
        "wrong-rank",
        _matrix,
        [_f32(3)],
        "to be bound to a tensor of rank 2, but got a tensor of rank 1",
    ),
    BadInput(
        "complex-for-double",
        _matrix_and_scalar,
        [_f32(3, 2), 2 + 1j],
        r"Scalar value \(2,1\) is not compatible with the expected data type: double.",
    ),
    BadInput(
        "float-for-int",
        lambda fd: fd.ops.mul(fd.define_tensor([-1]), fd.define_scalar(INT)),
        [_f32(3), 2.5],
        "is not compatible with the expected data type: int64_t.",
    ),
    BadInput(
        "none",
        _matrix,
        [None],
        "Cannot convert provided py::handle to a PolymorphicValue.",
    ),
    BadInput("string", _matrix, ["x"], "Cannot convert provided py::handle"),
    BadInput(
        "static-size",
        lambda fd: fd.ops.neg(fd.define_tensor([4, -1])),
        [_f32(3, 2)],
        "Tried to bind to a constant value: 4 as 3",
    ),
    BadInput(
        "size-of-broadcast-dim",
        lambda fd: fd.ops.neg(fd.define_tensor([1, -1])),
        [_f32(3, 2)],
        "Tried to bind to a constant value: 1 as 3",
    ),
    BadInput(
        "not-contiguous",
        lambda fd: fd.ops.neg(fd.define_tensor([-1, -1], True)),
        [_f32(3, 4)[:, :2]],
        "stride mismatch with contiguity info",
    ),
    BadInput(
        "transposed-though-contiguous",
        lambda fd: fd.ops.neg(fd.define_tensor([-1, -1], [True, True])),
        [_f32(3, 4).t()],
        "stride mismatch with contiguity info",
    ),
    BadInput(
        "stride-in-expanded-dim",
        lambda fd: fd.ops.neg(fd.define_tensor([-1, -1], [None, True])),
        [_f32(3, 4)],
        "has expanded extent but input tensor has size",
    ),
    BadInput("mismatched-extents", _two_vectors, [_f32(3), _f32(4)], _CONFLICT),
    BadInput(
        "size-1-against-many",
        _two_vectors,
        [_f32(3), _f32(1)],
        _CONFLICT,
    ),
    # W8.
    BadInput(
        "empty-against-many",
        lambda fd: fd.ops.add(fd.define_tensor([-1], dtype=INT), fd.define_tensor([-1], dtype=INT)),
        [torch.ones(5, dtype=torch.int64), torch.ones(0, dtype=torch.int64)],
        _CONFLICT,
    ),
    BadInput(
        "expand-to-another-extent",
        lambda fd: fd.ops.neg(fd.ops.expand(fd.define_tensor([-1]), [fd.define_scalar(INT)])),
        [_f32(3), 4],
        "conflict",
    ),
]


def _define(bad: BadInput) -> FusionDefinition:
    with FusionDefinition() as fd:
        fd.add_output(bad.define(fd))
    return fd


@pytest.mark.parametrize("bad", BAD_INPUTS, ids=lambda bad: bad.name)
def test_bad_input_is_refused(bad: BadInput) -> None:
    fd = _define(bad)
    before = counters()["kernels_compiled"]
    with pytest.raises(bad.error, match=bad.fragment) as caught:
        fd.execute(bad.inputs)
    assert isinstance(caught.value, FuserError)
    assert counters()["kernels_compiled"] == before


@pytest.mark.parametrize(
    "bad", [bad for bad in BAD_INPUTS if bad.name != "static-size"], ids=lambda bad: bad.name
)
def test_good_input_runs_after_a_bad_one(bad: BadInput) -> None:
    fd = _define(bad)
    with pytest.raises(bad.error):
        fd.execute(bad.inputs)
    good = [_good_value(val) for val in fusion_of(fd).inputs()]
    assert len(fd.execute(good)) == 1


def _good_value(val: Any) -> Any:
    if not hasattr(val, "logical"):
        return 3 if val.dtype_ is INT else 3.0
    shape = [1 if axis.is_broadcast() and axis.expanded is None else 3 for axis in val.logical]
    dtype = torch.int64 if val.dtype_ is INT else torch.float32
    tensor = torch.ones(shape, dtype=dtype)
    for dim, axis in enumerate(val.logical):
        if axis.expanded is not None:
            tensor = tensor.narrow(dim, 0, 1).expand(shape)
    return tensor


def test_contiguity_is_checked_after_a_hit() -> None:
    # W1: the first call compiles for a dense tensor; the second one isn't dense.
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.sin(fd.define_tensor([-1, -1], [True, True])))
    for _ in range(2):
        (out,) = fd.execute([torch.ones(3, 1)])
        torch.testing.assert_close(out, torch.sin(torch.ones(3, 1)))
    for _ in range(2):
        with pytest.raises(RuntimeError, match="stride mismatch with contiguity info"):
            fd.execute([torch.ones(1, 1).expand(3, 3)])
    # A size of 1 or 0 exempts its stride.
    (out,) = fd.execute([torch.ones(9).as_strided((1, 1), (2, 1))])
    assert out.shape == (1, 1)


def test_checks_hold_on_every_later_call() -> None:
    fd = _define(BAD_INPUTS[4])
    good = torch.ones(3, 2)
    for _ in range(3):
        assert len(fd.execute([good])) == 1
        with pytest.raises(RuntimeError, match="dtype float"):
            fd.execute([good.half()])


# --- in-place outputs
# ---------------------------------------------------------------------------------


def _in_place() -> FusionDefinition:
    with FusionDefinition() as fd:
        t0 = fd.define_tensor([-1, -1])
        fd.add_output(fd.ops.neg(t0), t0)
    return fd


def test_read_only_array_is_not_written() -> None:
    x = np.ones((3, 4), np.float32)
    x.flags.writeable = False
    with pytest.raises(RuntimeError, match=r"(?i)read-?only"):
        _in_place().execute([x])
    assert (x == 1).all()


def test_expanded_memory_is_not_written() -> None:
    x = torch.ones(1, 4).expand(3, 4)
    with pytest.raises(RuntimeError, match="share memory"):
        _in_place().execute([x])


def test_overlapping_strides_are_not_written() -> None:
    x = torch.ones(16).as_strided((3, 4), (1, 1))
    with pytest.raises(RuntimeError, match="share memory"):
        _in_place().execute([x])


def test_overlap_with_another_input_is_refused() -> None:
    whole = torch.arange(20.0)
    x, y = whole[:16].view(4, 4), whole[4:].view(4, 4)
    old = x.clone()
    with FusionDefinition() as fd:
        t0, t1 = fd.define_tensor([-1, -1]), fd.define_tensor([-1, -1])
        fd.add_output(fd.ops.add(t0, t1), t0)
    with pytest.raises(RuntimeError, match="shares memory"):
        fd.execute([x, y])
    assert torch.equal(x, old)


def test_alias_of_another_shape_is_refused_when_defined() -> None:
    with FusionDefinition() as fd:
        t0 = fd.define_tensor([4, 2], [True, True])
        t1 = fd.define_tensor([2, 4], [True, True])
        with pytest.raises(RuntimeError, match="can.t be written into"):
            fd.add_output(fd.ops.neg(t1), t0)
        fd.add_output(fd.ops.neg(t0))


def test_alias_of_another_extent_is_refused_when_run() -> None:
    with FusionDefinition() as fd:
        t0, t1 = fd.define_tensor([-1]), fd.define_tensor([-1])
        fd.add_output(fd.ops.neg(t1), t0)
    x = torch.ones(3)
    with pytest.raises(RuntimeError):
        fd.execute([x, torch.ones(4)])
    assert (x == 1).all()


# --- definitions
# ------------------------------------------------------------------------------------------


def test_fusion_without_output_is_refused() -> None:
    with FusionDefinition() as fd:
        fd.ops.neg(fd.define_tensor([-1]))
    with pytest.raises(NotImplementedError, match="Fusion is empty!"):
        fd.execute([torch.ones(3)])


def test_definition_that_was_never_entered_is_refused() -> None:
    with pytest.raises(NotImplementedError, match="Fusion does not exist!"):
        FusionDefinition().execute([torch.ones(3)])


def test_value_of_another_fusion_is_refused() -> None:
    with FusionDefinition() as first:
        stranger = first.define_tensor([-1])
        first.add_output(first.ops.neg(stranger))
    with FusionDefinition() as fd:
        t0 = fd.define_tensor([-1])
        with pytest.raises(RuntimeError, match="another fusion"):
            fd.ops.add(t0, stranger)
        with pytest.raises(RuntimeError, match="another fusion"):
            fd.add_output(stranger)


def test_execute_and_manual_execute_dont_mix() -> None:
    fd = _define(BAD_INPUTS[1])
    fd.execute([torch.ones(3, 2)])
    with pytest.raises(AssertionError, match="FusionExecutorCache already exists! Use execute"):
        fd.manual_execute([torch.ones(3, 2)])


def test_amax_over_an_empty_dim_is_refused() -> None:
    # W11: there is no greatest element of nothing, and eager PyTorch raises too.
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.max(fd.define_tensor([-1, -1]), [1]))
    with pytest.raises(RuntimeError, match="max"):
        fd.execute([torch.ones(3, 0)])


# --- NumPy arrays
# ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "dtype", ["float64", "float32", "float16", "int64", "int32", "bool", "complex64"]
)
def test_numpy_in_numpy_out(dtype: str) -> None:
    x = (np.arange(12).reshape(3, 4) % 3).astype(dtype)
    with FusionDefinition() as fd:
        t0 = fd.from_pytorch(x)
        fd.add_output(fd.ops.where(fd.ops.eq(t0, 1), t0, fd.ops.set(t0)))
    (out,) = fd.execute([x])
    assert isinstance(out, np.ndarray)
    assert out.dtype == x.dtype
    np.testing.assert_array_equal(out, x)


def test_numpy_negative_strides() -> None:
    x = np.arange(60, dtype=np.float32).reshape(5, 12)
    with FusionDefinition() as fd:
        t0 = fd.define_tensor([-1, -1])
        fd.add_output(fd.ops.neg(t0))
        fd.add_output(fd.ops.sum(t0, [1]))
        fd.add_output(fd.ops.sum(t0, [0]))
    for view in (x[::-1], x[:, ::-1], x[::-1, ::-2], x[:, ::-3].T, x[:1, ::-1]):
        negative, rows, columns = fd.execute([view])
        np.testing.assert_array_equal(negative, -view)
        np.testing.assert_array_equal(rows, view.sum(1))
        np.testing.assert_array_equal(columns, view.sum(0))


def test_read_only_array_is_readable() -> None:
    x = np.ones((3, 4), np.float32)
    x.flags.writeable = False
    fd = _define(BAD_INPUTS[1])
    (out,) = fd.execute([x])
    assert (out == -1).all()


def test_numpy_scalars_are_refused_as_inputs() -> None:
    fd = _define(BAD_INPUTS[3])
    with pytest.raises(RuntimeError, match="Cannot convert provided py::handle"):
        fd.execute([np.ones((3, 2), np.float32), np.float32(2.0)])


def test_cpu_scalar_tensor_joins() -> None:
    with FusionDefinition() as fd:
        t0 = fd.define_tensor([-1])
        t1 = fd.define_tensor([], dtype=FLOAT, is_cpu=True)
        fd.add_output(fd.ops.mul(t0, t1))
    (out,) = fd.execute([torch.arange(4.0), torch.tensor(2.5)])
    torch.testing.assert_close(out, torch.arange(4.0) * 2.5)
