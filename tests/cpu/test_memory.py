"""A fused program never needs more memory at a time than eager PyTorch does for the same math."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional

from fuser_direct import FusionDefinition
from tests.cases_fusions import layernorm, rmsnorm, softmax
from tests.cpu.memory_support import eager_peak, planned_peak

ROWS, COLUMNS = 64, 128
FULL = ROWS * COLUMNS * 4


def _matmul_chain(fd: Any, x: Any, w: Any) -> Any:
    """Each product is needed by the next alone."""
    for _ in range(6):
        x = fd.ops.relu(fd.ops.mul(fd.ops.matmul(x, w), 0.5))
    return x


def _eager_matmul_chain(x: Any, w: Any) -> Any:
    for _ in range(6):
        x = torch.relu(torch.matmul(x, w) * 0.5)
    return x


def _cut_chain(fd: Any, x: Any) -> Any:
    for _ in range(8):
        x = fd.ops.segment_set(fd.ops.tanh(fd.ops.add(x, 0.5)))
    return x


def _eager_cut_chain(x: Any) -> Any:
    for _ in range(8):
        x = torch.tanh(x + 0.5)
    return x


def _both_reductions(fd: Any, x: Any) -> Any:
    """Row and column sums of one computed tensor."""
    y = fd.ops.tanh(fd.ops.add(x, fd.ops.max(x, [1], keepdim=True)))
    return fd.ops.sum(y, [0]), fd.ops.sum(y, [1])


def _eager_both_reductions(x: Any) -> Any:
    y = torch.tanh(x + x.amax(1, True))
    return y.sum(0), y.sum(1)


def _mirrored(fd: Any, x: Any) -> Any:
    """A norm, needed straight and transposed: two kernels."""
    y = softmax(fd, fd.ops.slice(x, [0, 0], [ROWS, ROWS]))
    return softmax(fd, fd.ops.add(y, fd.ops.permute(y, [1, 0])))


def _eager_mirrored(x: Any) -> Any:
    y = torch.softmax(x[:, :ROWS], 1)
    return torch.softmax(y + y.t(), 1)


def _attention(fd: Any, q: Any, k: Any, v: Any) -> Any:
    scores = fd.ops.matmul(q, fd.ops.permute(k, [1, 0]))
    return fd.ops.matmul(softmax(fd, fd.ops.mul(scores, 0.1)), v)


def _eager_attention(q: Any, k: Any, v: Any) -> Any:
    return torch.softmax(torch.matmul(q, k.t()) * 0.1, -1) @ v


def _sorted_then_normed(fd: Any, x: Any, w: Any) -> Any:
    return rmsnorm(fd, fd.ops.cumsum(fd.ops.tanh(x), 1), w)


def _eager_sorted_then_normed(x: Any, w: Any) -> Any:
    return functional.rms_norm(torch.cumsum(torch.tanh(x), 1), [COLUMNS], w, 1e-5)


def _joined(fd: Any, x: Any) -> Any:
    halves = [fd.ops.slice(x, [0, c], [ROWS, c + COLUMNS // 2]) for c in (0, COLUMNS // 2)]
    return fd.ops.relu(fd.ops.cat([fd.ops.neg(halves[1]), fd.ops.exp(halves[0])], 1))


def _eager_joined(x: Any) -> Any:
    half = COLUMNS // 2
    return torch.relu(torch.cat([-x[:, half:], torch.exp(x[:, :half])], 1))


X, W = (ROWS, COLUMNS), (COLUMNS,)
CASES: dict[str, tuple[Callable[..., Any], Callable[..., Any], list[tuple[int, ...]]]] = {
    "matmul-chain": (_matmul_chain, _eager_matmul_chain, [X, (COLUMNS, COLUMNS)]),
    "cut-chain": (_cut_chain, _eager_cut_chain, [X]),
    "both-reductions": (_both_reductions, _eager_both_reductions, [X]),
    "mirrored": (_mirrored, _eager_mirrored, [X]),
    "attention": (_attention, _eager_attention, [X, X, X]),
    "scan-then-norm": (_sorted_then_normed, _eager_sorted_then_normed, [X, W]),
    "joined": (_joined, _eager_joined, [X]),
    "layernorm": (
        layernorm,
        lambda x, w, b: torch.native_layer_norm(x, [COLUMNS], w, b, 1e-5),
        [X, W, W],
    ),
}


def made(
    define: Callable[..., Any], shapes: list[tuple[int, ...]]
) -> tuple[FusionDefinition, list[torch.Tensor]]:
    inputs = [torch.rand(shape) for shape in shapes]
    with FusionDefinition() as fd:
        outputs = define(fd, *(fd.define_tensor(list(shape), True) for shape in shapes))
        for output in outputs if isinstance(outputs, tuple) else (outputs,):
            fd.add_output(output)
    return fd, inputs


@pytest.mark.parametrize("name", CASES)
def test_peak_is_no_more_than_eager(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    define, eager, shapes = CASES[name]
    fd, inputs = made(define, shapes)
    ours, theirs = planned_peak(fd, inputs, monkeypatch), eager_peak(eager, inputs)
    assert 0 < ours <= theirs, f"{ours} bytes at a time, eager PyTorch {theirs}"


def test_a_chain_of_segments_holds_two_buffers_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    fd, inputs = made(_cut_chain, [X])
    assert planned_peak(fd, inputs, monkeypatch) == 2 * FULL


def test_one_kernel_allocates_its_outputs_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    fd, inputs = made(_joined, [X])
    assert planned_peak(fd, inputs, monkeypatch) == FULL


def test_library_calls_allocate_their_results_alone() -> None:
    """The copies of inputs that a definition asks for cost nothing inside a library call."""
    fd, inputs = made(_attention, [X, X, X])
    fd.execute(inputs)
    # The scores are freed before the second product is made.
    assert eager_peak(lambda *given: fd.execute(list(given)), inputs) == FULL


def test_a_copy_shields_the_input_from_a_library_call_that_writes() -> None:
    table, rows = torch.full((20, 8), 5.0), torch.tensor([1, 2, 3])
    with FusionDefinition() as fd:
        weight, index = fd.from_pytorch(table), fd.from_pytorch(rows)
        scalars = [fd.define_scalar(value) for value in (1.0, 2.0, False, False)]
        fd.add_output(fd.ops.embedding_fwd(index, fd.ops.set(weight), None, *scalars))
    (out,) = fd.execute([table, rows])
    torch.testing.assert_close(out.norm(dim=1), torch.ones(3))
    assert bool((table == 5.0).all())


def test_eager_bytes_are_counted() -> None:
    x = torch.rand(X)
    assert eager_peak(lambda x: x + 1, [x]) == FULL
    assert eager_peak(lambda x: torch.tanh(x + 1).view(-1), [x]) == 2 * FULL
    assert eager_peak(lambda x: x.t(), [x]) == 0
