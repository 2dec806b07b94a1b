"""Pointwise math behind a reshape joins the reduction in front of it where that saves a kernel."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from test_cuda_fusions import check_fusion

from fuser_direct import FusionDefinition
from fuser_direct.compiler.pipeline import FusionCompiler
from fuser_direct.compiler.preview import preview
from fuser_direct.schedulers.schedule import CudaRow
from tests.cases_gathers import GROUP_NORMS
from tests.support import Case, Maker, define, fusion_of


@pytest.mark.parametrize("case", GROUP_NORMS, ids=lambda c: c.name)
def test_a_group_norm_is_one_kernel_that_moves_each_tensor_once(case: Case) -> None:
    inputs = case.inputs(Maker("cpu"))
    fusion = fusion_of(define(case, inputs))
    _, steps = preview(fusion, inputs)
    (item,) = [item for step in steps for item in step.kernels]
    lowered = item.lowered
    # x, the other tensor and the result; weight and bias are a few channels.
    whole = [b for b in range(len(lowered.arguments)) if lowered.touched_elems(b) > 100]
    assert [lowered.touched_elems(b) for b in whole] == [inputs[0].numel()] * len(whole)
    assert len({lowered.arguments[b].operand.tensor for b in whole}) == 3


@pytest.mark.parametrize("case", GROUP_NORMS, ids=lambda c: c.name)
def test_its_cuda_text_does_what_it_means(case: Case) -> None:
    (made,) = check_fusion(case)
    assert isinstance(made.schedule, CudaRow)
    # Where channels are whole vectors long, one weight serves a vector.
    extents = made.lowered.extents
    assert bool(made.schedule.uniform) is (extents[-1] == 96)


def _compiler(math: Any, *inputs: torch.Tensor) -> tuple[FusionDefinition, FusionCompiler]:
    with FusionDefinition() as fd:
        fd.add_output(math(fd, *(fd.from_pytorch(x, static_sizes=True) for x in inputs)))
    assert fd.fusion is not None
    return fd, FusionCompiler(fd.fusion)


def _normalised(fd: Any, x: Any) -> Any:
    return fd.ops.div(x, fd.ops.sum(x, [1], keepdim=True))


def test_nothing_is_moved_where_it_saves_no_kernel() -> None:
    x = torch.rand(4, 12)

    def reduced_again(fd: Any, a: Any) -> Any:
        other = fd.ops.reshape(_normalised(fd, a), [4, 3, 4])
        return fd.ops.sum(fd.ops.exp(other), [2])

    for math in (reduced_again, lambda fd, a: fd.ops.exp(fd.ops.reshape(a, [4, 3, 4]))):
        fd, compiler = _compiler(math, x)
        assert compiler.planned is fd.fusion


def test_the_definition_stays_as_it_was() -> None:
    x, weight = torch.rand(4, 12), torch.rand(4, 3, 4)

    def math(fd: Any, a: Any, w: Any) -> Any:
        return fd.ops.mul(fd.ops.reshape(_normalised(fd, a), [4, 3, 4]), w)

    fd, compiler = _compiler(math, x, weight)
    assert fd.fusion is not None
    before = fd.fusion.print_math()
    assert compiler.planned is not fd.fusion
    assert compiler.fusion is fd.fusion
    (out,) = fd.execute([x, weight])
    assert fd.fusion.print_math() == before
    assert out.is_contiguous()
    torch.testing.assert_close(out, (x / x.sum(1, True)).reshape(4, 3, 4) * weight)


def test_the_result_follows_the_order_of_channels_last_inputs() -> None:
    shape = (2, 8, 4, 6)
    x = torch.rand(shape).contiguous(memory_format=torch.channels_last)

    def math(fd: Any, a: Any) -> Any:
        grouped = fd.ops.reshape(a, [2, 4, 2, 4, 6])
        total = fd.ops.sum(grouped, [2, 3, 4], keepdim=True)
        return fd.ops.add(fd.ops.reshape(fd.ops.div(grouped, total), list(shape)), 1.0)

    with FusionDefinition() as fd:
        fd.add_output(math(fd, fd.from_pytorch(x)))
    (out,) = fd.execute([x])
    assert out.is_contiguous(memory_format=torch.channels_last)
    want = x.reshape(2, 4, 2, 4, 6)
    want = (want / want.sum((2, 3, 4), keepdim=True)).reshape(shape) + 1
    torch.testing.assert_close(out, want)
