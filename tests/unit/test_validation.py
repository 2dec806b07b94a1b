"""Tolerances, and what `validate` accepts and refuses; outputs are given, nothing is executed."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fuser_direct import DataType, FusionDefinition, ValidationError
from fuser_direct.validation import (
    get_val_tolerances,
    tolerance,
    validate,
    validate_with_auto_inferred_outputs,
)
from tests.support import fusion_of

FLOAT, HALF, BF16 = DataType.Float, DataType.Half, DataType.BFloat16


def _sum_of_exp() -> FusionDefinition:
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.sum(fd.ops.exp(fd.define_tensor([-1, -1])), [1]))
    return fd


def test_tolerance_without_reduction() -> None:
    assert tolerance(FLOAT, 0) == (1.7e-6, 2.2e-6)
    assert tolerance(DataType.ComplexDouble, 0) == tolerance(FLOAT, 0)
    assert tolerance(HALF, 0) == pytest.approx((0.0039, 0.0078), rel=0.01)
    assert tolerance(BF16, 0) == pytest.approx((0.039, 0.078), rel=0.01)
    assert tolerance(DataType.Int, 100) == tolerance(DataType.Bool, 0) == (0.0, 0.0)


def test_tolerance_grows_with_the_reduced_elements() -> None:
    assert tolerance(FLOAT, 8)[0] == pytest.approx(3e-6, rel=0.1)
    assert tolerance(FLOAT, 1 << 21)[0] == pytest.approx(3.4e-3, rel=0.1)
    assert tolerance(FLOAT, 1 << 22)[0] == 2 * tolerance(FLOAT, 1 << 21)[0]
    assert tolerance(FLOAT, 1 << 30) == tolerance(FLOAT, 1 << 22)
    assert tolerance(HALF, 1 << 21)[0] == pytest.approx(4.0, rel=0.1)
    steps = [tolerance(FLOAT, n)[0] for n in (1, 9, 17, 1000, 1025)]
    assert steps == sorted(steps)
    # Steps are powers of two.
    assert tolerance(FLOAT, 1025) == tolerance(FLOAT, 2048) != tolerance(FLOAT, 2049)
    for count in (8, 4096):
        absolute, relative = tolerance(FLOAT, count)
        assert relative == pytest.approx(0.01 * absolute)


def test_reductions_along_a_chain_multiply() -> None:
    with FusionDefinition() as fd:
        t0 = fd.define_tensor([-1, -1])
        rows = fd.ops.sum(t0, [1])
        fd.add_output(fd.ops.neg(t0))
        fd.add_output(rows)
        fd.add_output(fd.ops.max(rows, [0]))
        fd.add_output(fd.ops.neg(t0), t0)
    found = get_val_tolerances(fusion_of(fd), [torch.zeros(32, 64)])
    assert found == [tolerance(FLOAT, 0), tolerance(FLOAT, 64), tolerance(FLOAT, 64 * 32)]


def test_right_outputs_pass_with_and_without_references() -> None:
    x = torch.randn(9, 70)
    out = torch.exp(x).sum(1)
    fusion = fusion_of(_sum_of_exp())
    validate(fusion, [out], None, [x])
    validate(fusion, [out], [torch.exp(x.double()).sum(1)], [x])
    validate(fusion, [out.numpy()], [out.numpy()], [x.numpy()])
    validate_with_auto_inferred_outputs(fusion, [out], [x])


def test_wrong_element_is_named() -> None:
    x = torch.randn(9, 70)
    out = torch.exp(x).sum(1)
    out[4] += 0.5
    with pytest.raises(ValidationError, match=r"output 0 .* 1 of 9 elements .* at \[4\]: got"):
        validate(fusion_of(_sum_of_exp()), [out], None, [x])


@pytest.mark.parametrize("kind", [AssertionError, RuntimeError])
def test_failure_is_what_the_peer_raises(kind: type[Exception]) -> None:
    with pytest.raises(kind):
        validate_with_auto_inferred_outputs(
            fusion_of(_sum_of_exp()), [torch.zeros(9)], [torch.ones(9, 70)]
        )


def test_wrong_count_shape_and_dtype_are_named() -> None:
    x = torch.randn(9, 70)
    out = torch.exp(x).sum(1)
    fusion = fusion_of(_sum_of_exp())
    with pytest.raises(ValidationError, match="expected 1 outputs"):
        validate(fusion, [out, out], None, [x])
    with pytest.raises(ValidationError, match="expected 1 references"):
        validate(fusion, [out], [], [x])
    with pytest.raises(ValidationError, match=r"shape \[9, 1\]"):
        validate(fusion, [out[:, None]], None, [x])
    with pytest.raises(ValidationError, match=r"dtype torch.float64; the fusion's is float32"):
        validate(fusion, [out.double()], None, [x])
    with pytest.raises(ValidationError, match=r"the reference has torch.int64"):
        validate(fusion, [out], [out.long()], [x])


def test_nan_and_infinity_agree_with_themselves_alone() -> None:
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.neg(fd.define_tensor([-1])))
    x = torch.tensor([np.nan, np.inf, 1.0])
    validate(fusion_of(fd), [-x], None, [x])
    for place, value in ((0, 1.0), (1, np.inf), (2, np.nan), (1, 3e38)):
        wrong = -x
        wrong[place] = value
        with pytest.raises(ValidationError, match=rf"1 of 3 elements .* at \[{place}\]"):
            validate(fusion_of(fd), [wrong], None, [x])


def test_large_results_are_judged_by_their_size() -> None:
    x = torch.randn(9, 70) * 1e4
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.sum(fd.define_tensor([-1, -1]), [1]))
    out = x.sum(1)
    validate(fusion_of(fd), [out], None, [x])
    out[0] += 30.0
    with pytest.raises(ValidationError):
        validate(fusion_of(fd), [out], None, [x])


def test_integers_are_compared_exactly() -> None:
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.add(fd.define_tensor([-1], dtype=DataType.Int), 1))
    x = torch.tensor([2**62, 5])
    validate(fusion_of(fd), [x + 1], None, [x])
    with pytest.raises(ValidationError):
        validate(fusion_of(fd), [x + 2], None, [x])
