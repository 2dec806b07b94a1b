"""Behaviours that the CPU suite and the GPU suite check alike; each function takes the device."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from fuser_direct import DataType, FusionDefinition
from fuser_direct.ops.reference import evaluate
from tests.cases_fusions import layernorm, rmsnorm, softmax
from tests.support import Maker, check, counters, execute_and_check, fusion_of


def _unary(name: str, x: Any, **options: Any) -> FusionDefinition:
    """One op of one input like x."""
    with FusionDefinition() as fd:
        fd.add_output(getattr(fd.ops, name)(fd.from_pytorch(x), **options))
    return fd


def _execute(fd: FusionDefinition, *inputs: Any) -> Any:
    """The only output."""
    (output,) = fd.execute(list(inputs))
    return output


# --- layout of outputs
# -------------------------------------------------------------------------------


def pointwise_output_keeps_channels_last(device: str) -> None:
    x = torch.randn(2, 6, 3, 5, device=device).to(memory_format=torch.channels_last)
    out = _execute(_unary("relu", x), x)
    assert out.stride() == x.stride()
    assert torch.equal(out, torch.relu(x))


def pointwise_output_keeps_the_order_of_a_transposed_input(device: str) -> None:
    x = torch.randn(7, 5, device=device).t()
    out = _execute(_unary("neg", x), x)
    assert out.stride() == (1, 5)
    assert torch.equal(out, -x)


def output_of_a_padded_input_is_dense(device: str) -> None:
    x = torch.randn(7, 9, device=device)[:, :5]
    assert _execute(_unary("neg", x), x).stride() == (5, 1)


def output_of_inputs_in_different_orders_is_row_major(device: str) -> None:
    x, y = torch.randn(7, 5, device=device), torch.randn(5, 7, device=device).t()
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.add(fd.from_pytorch(x), fd.from_pytorch(y)))
    out = _execute(fd, x, y)
    assert out.stride() == (5, 1)
    assert torch.equal(out, x + y)


def order_follows_the_input_with_most_dims(device: str) -> None:
    x, bias = torch.randn(4, 6, 5, device=device).permute(2, 0, 1), torch.randn(6, device=device)
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.add(fd.from_pytorch(x), fd.from_pytorch(bias)))
    out = _execute(fd, x, bias)
    assert out.stride() == x.stride()
    assert torch.equal(out, x + bias)


def stride_order_fixes_the_layout(device: str) -> None:
    x = torch.randn(2, 3, 5, device=device)
    out = _execute(_unary("stride_order", x, stride_order=[0, 2, 1]), x)
    assert out.stride() == (1, 10, 2)
    assert torch.equal(out, x)


def metadata_chains_return_views(device: str) -> None:
    x = torch.randn(3, 1, 5, device=device)
    with FusionDefinition() as fd:
        t0 = fd.from_pytorch(x)
        fd.add_output(fd.ops.permute(t0, [2, 0, 1]))
        fd.add_output(fd.ops.squeeze(t0, [1]))
        fd.add_output(fd.ops.broadcast(t0, [False, True, False, False]))
        fd.add_output(fd.ops.expand(t0, [3, 4, 5]))
    permuted, squeezed, broadcast, expanded = fd.execute([x])
    for out, want in (
        (permuted, x.permute(2, 0, 1)),
        (squeezed, x.squeeze(1)),
        (broadcast, x.unsqueeze(1)),
        (expanded, x.expand(3, 4, 5)),
    ):
        assert out.data_ptr() == x.data_ptr()
        assert out.shape == want.shape
        assert torch.equal(out, want)
    assert permuted.stride()[:2] == (1, 5)
    assert expanded.stride()[1] == 0


def view_of_a_temporary_outlives_the_call(device: str) -> None:
    def _view() -> Any:
        x = torch.arange(12.0, device=device).reshape(3, 4)
        return _execute(_unary("permute", x, dims=[1, 0]), x)

    view = _view()
    torch.empty(12, device=device).fill_(-1.0)
    assert torch.equal(view.cpu(), torch.arange(12.0).reshape(3, 4).t())


def input_as_output_is_the_input(device: str) -> None:
    x = torch.randn(3, 4, device=device)
    with FusionDefinition() as fd:
        fd.add_output(fd.from_pytorch(x))
    out = _execute(fd, x)
    assert out.data_ptr() == x.data_ptr()
    assert out.stride() == x.stride()


def outputs_are_fresh_on_each_call(device: str) -> None:
    x = torch.randn(3, 4, device=device)
    fd = _unary("neg", x)
    first, second = _execute(fd, x), _execute(fd, x)
    assert first.data_ptr() != second.data_ptr()


# --- in-place outputs
# -------------------------------------------------------------------------------


def reads_beside_an_in_place_output_see_the_old_value(device: str) -> None:
    # W31.
    x, y = torch.randn(10, 2, device=device), torch.randn(2, 10, 2, device=device)
    with FusionDefinition() as fd:
        t0, t1 = fd.from_pytorch(x), fd.from_pytorch(y)
        fd.add_output(fd.ops.relu(t0), t0)
        fd.add_output(fd.ops.add(t0, t1))
    old = x.clone()
    out = _execute(fd, x, y)
    assert torch.equal(x, torch.relu(old))
    assert torch.equal(out, old + y)


def in_place_reads_at_other_elements_see_the_old_value(device: str) -> None:
    x = torch.randn(65, 65, device=device)
    with FusionDefinition() as fd:
        t0 = fd.from_pytorch(x)
        fd.add_output(fd.ops.add(t0, fd.ops.permute(t0, [1, 0])), t0)
    old = x.clone()
    assert fd.execute([x]) == []
    assert torch.equal(x, old + old.t())


def in_place_normalization(device: str) -> None:
    x = torch.randn(33, 70, device=device)
    with FusionDefinition() as fd:
        t0 = fd.from_pytorch(x)
        fd.add_output(softmax(fd, t0), t0)
        fd.add_output(fd.ops.sum(t0, [0]))
    old = x.double()
    (total,) = fd.execute([x])
    torch.testing.assert_close(x.double(), torch.softmax(old, -1), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(total.double(), old.sum(0), rtol=1e-5, atol=1e-5)


def in_place_update_leaves_padding_alone(device: str) -> None:
    # W3.
    whole = torch.randn(2, 3, device=device)
    kept = whole.clone()
    x = whole[:, :2]
    with FusionDefinition() as fd:
        t0 = fd.define_tensor([-1, -1], [False, True])
        fd.add_output(fd.ops.neg(t0), t0)
    fd.execute([x])
    assert torch.equal(whole[:, :2], -kept[:, :2])
    assert torch.equal(whole[:, 2], kept[:, 2])


def last_of_two_updates_wins(device: str) -> None:
    x = torch.randn(5, 6, device=device)
    with FusionDefinition() as fd:
        t0 = fd.from_pytorch(x)
        fd.add_output(fd.ops.neg(t0), t0)
        fd.add_output(fd.ops.add(t0, 2.0), t0)
    old = x.clone()
    fd.execute([x])
    assert torch.equal(x, old + 2.0)


def aliased_and_plain_outputs_share_the_inputs_memory(device: str) -> None:
    x = torch.randn(4, 5, device=device)
    with FusionDefinition() as fd:
        t0 = fd.from_pytorch(x)
        t1 = fd.ops.exp(t0)
        fd.add_output(t1)
        fd.add_output(t1, t0)
        fd.add_output(t1)
        fd.add_output(t0)
    expected = evaluate(fusion_of(fd), [x])
    outputs = fd.execute([x])
    assert len(outputs) == 3
    assert all(out.data_ptr() == x.data_ptr() for out in outputs)
    check(fusion_of(fd), outputs, expected, [x])


# --- caching
# ----------------------------------------------------------------------------------------


def equal_definitions_compile_once(device: str) -> None:
    # P2.
    x = torch.randn(21, 37, device=device)
    before = None
    for _ in range(8):
        with FusionDefinition() as fd:
            t0 = fd.from_pytorch(x)
            fd.add_output(fd.ops.tanh(fd.ops.mul(fd.ops.add(t0, 0.375), 1.625)))
        _execute(fd, x)
        before = counters()["kernels_compiled"] if before is None else before
    assert counters()["kernels_compiled"] == before


def shapes_seen_before_compile_nothing(device: str) -> None:
    # P7.
    fd = _unary("sum", torch.randn(64, 256, device=device), dims=[0])
    tensors = [torch.randn(64, 256 + 8 * i, device=device) for i in range(10)]
    for x in tensors:
        execute_and_check(fd, [x])
    before = counters()["kernels_compiled"]
    for x in tensors:
        execute_and_check(fd, [x])
    assert counters()["kernels_compiled"] == before


def new_shapes_of_a_class_share_kernels(device: str) -> None:
    fd = _unary("neg", torch.randn(8, 128, device=device))
    execute_and_check(fd, [torch.randn(8, 128, device=device)])
    before = counters()["kernels_compiled"]
    for rows in (9, 16, 130):
        for columns in (128, 256, 512):
            execute_and_check(fd, [torch.randn(rows, columns, device=device)])
    assert counters()["kernels_compiled"] == before


def new_strides_need_no_new_definition(device: str) -> None:
    # P5.
    with FusionDefinition() as fd:
        t0 = fd.define_tensor([-1, -1])
        fd.add_output(fd.ops.sum(fd.ops.mul(t0, 2.0), [1]))
        fd.add_output(fd.ops.neg(t0))
    x = torch.randn(12, 40, device=device)
    for tensor in (x, x[::2], x[:, ::2], x.t(), x[:, 3:], x[:1], x[:0], x[:, :1].expand(12, 9)):
        execute_and_check(fd, [tensor])


def size_one_at_run_time_is_no_broadcast_but_runs(device: str) -> None:
    with FusionDefinition() as fd:
        t0, t1 = fd.define_tensor([-1, -1]), fd.define_tensor([-1, -1])
        fd.add_output(fd.ops.add(t0, t1))
    for shape in ((4, 5), (1, 5), (4, 1), (1, 1)):
        x, y = torch.randn(shape, device=device), torch.randn(shape, device=device)
        execute_and_check(fd, [x, y], lambda a, b: a + b)


def scalars_change_without_a_compile(device: str) -> None:
    with FusionDefinition() as fd:
        t0, s0 = fd.define_tensor([-1]), fd.define_scalar(DataType.Double)
        fd.add_output(fd.ops.mul(t0, s0))
    x = torch.randn(33, device=device)
    execute_and_check(fd, [x, 1.5], lambda a, s: a * s)
    before = counters()["kernels_compiled"]
    for value in (2.5, -1.0, 0.0, float("inf"), float("nan")):
        execute_and_check(fd, [x, value])
    assert counters()["kernels_compiled"] == before


def extents_given_as_scalars_size_the_output(device: str) -> None:
    with FusionDefinition() as fd:
        t0 = fd.define_tensor([-1])
        rows = fd.define_scalar(DataType.Int)
        fd.add_output(fd.ops.broadcast_in_dim(fd.ops.neg(t0), [rows, fd.ops.size(t0, 0)], [1]))
        fd.add_output(fd.ops.full([rows, 2], 3.0, DataType.Float))
    x = torch.randn(9, device=device)
    for count in (3, 1, 0, 7):
        wide, filled = execute_and_check(fd, [x, count])
        assert wide.shape == (count, 9)
        assert filled.shape == (count, 2)


# --- determinism and threads
# ------------------------------------------------------------------------


def runs_repeat_to_the_bit(device: str) -> None:
    maker = Maker(device)
    x = maker.normal((513, 2049), DataType.BFloat16)
    w = maker.normal((2049,), DataType.BFloat16)
    with FusionDefinition() as fd:
        t0, t1 = fd.from_pytorch(x), fd.from_pytorch(w)
        normal = rmsnorm(fd, t0, t1)
        fd.add_output(normal)
        fd.add_output(fd.ops.sum(fd.ops.cast(normal, DataType.Float), [0]))
        fd.add_output(fd.ops.sum(fd.ops.cast(t0, DataType.Float), [0, 1]))
    first = [out.clone() for out in fd.execute([x, w])]
    for _ in range(5):
        for before, after in zip(first, fd.execute([x, w]), strict=True):
            assert torch.equal(before, after)


def _in_threads(work: Callable[[int], None], count: int = 16) -> None:
    """Run `work(0..count-1)` at once, one thread each; raise the first failure."""
    barrier = threading.Barrier(count)
    failures: list[BaseException] = []

    def _body(number: int) -> None:
        try:
            barrier.wait(30)
            work(number)
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=_body, args=(n,), daemon=True) for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive(), "a thread hangs"
    if failures:
        raise failures[0]


def threads_share_one_compile(device: str) -> None:
    # U16.
    x = torch.randn(11, 29, device=device)
    fd = _unary("sinh", x)
    want = torch.sinh(x.double()).cpu()
    before = counters()["kernels_compiled"]

    def _work(number: int) -> None:
        torch.testing.assert_close(_execute(fd, x).double().cpu(), want, rtol=1e-5, atol=1e-6)

    _in_threads(_work)
    assert counters()["kernels_compiled"] <= before + 1


def threads_define_and_run_their_own(device: str) -> None:
    # U15: first use of a device in each thread, kernels of several kinds.
    def _work(number: int) -> None:
        maker = Maker(device, number)
        x, w, b = maker.normal((5, 30 + number)), *(maker.normal((30 + number,)) for _ in "wb")
        with FusionDefinition() as fd:
            values = [fd.from_pytorch(t) for t in (x, w, b)]
            for out in layernorm(fd, *values):
                fd.add_output(out)
            fd.add_output(fd.ops.add(values[0], float(number)))
        for _ in range(3):
            execute_and_check(fd, [x, w, b])

    _in_threads(_work)


# --- odds and ends
# ----------------------------------------------------------------------------------


def inputs_may_be_any_iterable_with_vectors(device: str) -> None:
    with FusionDefinition() as fd:
        t0, shape = fd.define_tensor([-1]), fd.define_vector(2)
        fd.add_output(fd.ops.broadcast_in_dim(fd.ops.neg(t0), shape, [1]))
    x = torch.randn(4, device=device)
    for inputs in ([x, [3, 4]], (x, (3, 4)), [x, 3, 4], iter([x, [3, 4]])):
        (out,) = fd.execute(inputs)
        assert torch.equal(out, (-x).expand(3, 4))


def random_values_of_every_class_agree_with_numpy(device: str) -> None:
    # A large flat tensor crosses every block, thread and tail boundary at once.
    maker = Maker(device)
    x = maker.normal((100003,))
    with FusionDefinition() as fd:
        t0 = fd.from_pytorch(x)
        fd.add_output(fd.ops.add(t0, 1.0))
        fd.add_output(fd.ops.sum(t0, [0]))
        fd.add_output(fd.ops.max(t0, [0]))
    plus, total, top = fd.execute([x])
    values = x.cpu().numpy()
    assert np.array_equal(plus.cpu().numpy(), values + np.float32(1))
    assert top.item() == values.max()
    assert abs(total.item() - values.sum(dtype=np.float64)) < 1e-2


def validate_accepts_right_and_refuses_wrong_outputs(device: str) -> None:
    x = torch.randn(40, 50, device=device)
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.sum(fd.ops.exp(fd.from_pytorch(x)), [1]))
    (out,) = fd.validate([x])
    fd.validate([x], [torch.exp(x.double()).sum(1).float()])
    wrong = out.clone()
    wrong[7] += 1.0
    with pytest.raises(AssertionError, match=r"output 0 .* at \[7\]"):
        fd.validate([x], [wrong])


CHECKS: list[Callable[[str], None]] = [
    pointwise_output_keeps_channels_last,
    pointwise_output_keeps_the_order_of_a_transposed_input,
    output_of_a_padded_input_is_dense,
    output_of_inputs_in_different_orders_is_row_major,
    order_follows_the_input_with_most_dims,
    stride_order_fixes_the_layout,
    metadata_chains_return_views,
    view_of_a_temporary_outlives_the_call,
    input_as_output_is_the_input,
    outputs_are_fresh_on_each_call,
    reads_beside_an_in_place_output_see_the_old_value,
    in_place_reads_at_other_elements_see_the_old_value,
    in_place_normalization,
    in_place_update_leaves_padding_alone,
    last_of_two_updates_wins,
    aliased_and_plain_outputs_share_the_inputs_memory,
    equal_definitions_compile_once,
    shapes_seen_before_compile_nothing,
    new_shapes_of_a_class_share_kernels,
    new_strides_need_no_new_definition,
    size_one_at_run_time_is_no_broadcast_but_runs,
    scalars_change_without_a_compile,
    extents_given_as_scalars_size_the_output,
    runs_repeat_to_the_bit,
    threads_share_one_compile,
    threads_define_and_run_their_own,
    inputs_may_be_any_iterable_with_vectors,
    random_values_of_every_class_agree_with_numpy,
    validate_accepts_right_and_refuses_wrong_outputs,
]
