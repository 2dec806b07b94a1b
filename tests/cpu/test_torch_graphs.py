"""The torch.compile backend: dynamic shapes, grouping, and what can't be fused; the GPU suite runs
these tests too."""

from __future__ import annotations

import logging
import random
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from fuser_direct import torch_backend
from fuser_direct.errors import InputError
from fuser_direct.torch_backend import report
from fuser_direct.torch_backend.decompositions import decompositions
from fuser_direct.torch_backend.rebuild import fuse
from tests.torch_support import (
    NORMS,
    Block,
    Function,
    assert_near,
    check,
    compiled,
    fresh_dynamo,  # noqa: F401
    in_double,
    kernels,
    module_step,
    with_grads,
)

# --- dynamic shapes ---


@pytest.mark.parametrize("name", ["layer_norm", "swiglu", "softmax_outer"])
def test_new_sizes_compile_no_kernel(name: str, device: str) -> None:
    run = compiled(NORMS[name], dynamic=True)
    w = torch.randn(33, device=device, requires_grad=True)

    def step(rows: int) -> None:
        x = torch.randn(rows, 33, device=device, requires_grad=True)
        got = with_grads(run, (x, w))
        assert_near(got, with_grads(NORMS[name], in_double((x, w))))

    step(64)
    with report.recording() as graphs:
        step(72)
        before = kernels()
        for rows in (80, 88, 96):
            step(rows)
    assert kernels() == before
    assert not graphs


def test_dynamic_block_compiles_once(device: str) -> None:
    block = Block().to(device)
    exact = Block().to(device, torch.float64)
    exact.load_state_dict(block.state_dict())
    run = compiled(block, dynamic=True)
    with report.recording() as graphs:
        for batch, tokens in ((2, 8), (3, 12), (5, 10)):
            x = torch.randn(batch, tokens, 32, device=device)
            assert_near(module_step(block, run, x), module_step(exact, exact, x.double()))
    assert [graph.kind for graph in graphs] == ["forward", "backward"]
    assert not any("follows from no input" in str(graph) for graph in graphs)


def test_slices_of_symbolic_dims(device: str) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = torch.exp(x) * 2
        return (y[1:] - y[:-1]).sum(-1) * y[2:, 0].mean() + y[-3:].sum()

    run = compiled(function, dynamic=True)
    for rows in (4, 5, 9):
        x = torch.randn(rows, 6, device=device)
        assert_near(run(x), function(x.double()))


def test_symbolic_reshapes_and_joins(device: str) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        n, c = x.shape
        y = torch.exp(x).reshape(n, 2, c // 2).sum(1) * n
        return torch.cat([y * 2, x + 1], 1).reshape(-1) / (n + c)

    run = compiled(function, dynamic=True)
    for rows, columns in ((4, 6), (5, 8), (7, 10)):
        x = torch.randn(rows, columns, device=device)
        assert_near(run(x), function(x.double()))


def test_python_numbers_as_arguments(device: str) -> None:
    def function(x: torch.Tensor, factor: float, count: int) -> torch.Tensor:
        return torch.exp(x) * factor + count

    run = compiled(function, dynamic=True)
    x = torch.randn(5, device=device)
    for factor, count in ((1.5, 3), (2.5, 4), (0.1, 7)):
        assert_near(run(x, factor, count), function(x.double(), factor, count))


# --- grouping ---

_STEPS: tuple[Function, ...] = (
    lambda a, b: torch.sin(a) + b,
    lambda a, b: a * b - 0.5,
    lambda a, b: torch.tanh(a).t(),
    lambda a, b: torch.maximum(a, b),
    lambda a, b: a - a.mean(-1, keepdim=True),
    lambda a, b: (a * b).sum(0) + b,
    lambda a, b: a.reshape(2, 18).reshape(6, 6),
    lambda a, b: torch.cumsum(a, -1).tanh(),
    lambda a, b: torch.flip(b, (0,)),
    lambda a, b: torch.cat([a[:3], b[3:]]),
)


def random_program(seed: int) -> Function:
    """A program of twenty steps, fusable or not, each over two earlier values."""
    chooser = random.Random(seed)
    steps = [
        (chooser.randrange(len(_STEPS)), chooser.randrange(i + 2), chooser.randrange(i + 2))
        for i in range(20)
    ]
    returned = chooser.sample(range(2, 22), 4)

    def program(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        values = [x, y]
        for step, a, b in steps:
            values.append(_STEPS[step](values[a], values[b]))
        return [values[i] for i in returned]

    return program


@pytest.mark.parametrize("seed", range(25))
def test_regions_of_random_programs_depend_on_themselves_nowhere(seed: int, device: str) -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    program = random_program(seed)
    x, y = (torch.randn(6, 6, device=device) for _ in range(2))
    traced = make_fx(program, decompositions(), tracing_mode="fake")(x, y)
    fused, _ = fuse(traced, "inference", False)
    got, eager = fused(x, y), program(x, y)
    assert [t.stride() for t in got] == [t.stride() for t in eager]
    assert_near(got, program(x.double(), y.double()))


# --- what can't be fused, errors ---


def test_op_without_a_rule_splits_the_graph(device: str) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = torch.exp(x) + 1
        return torch.cumsum(y, -1) * 2 + y

    check(function, torch.randn(5, 6, device=device), least=2)


def test_complex_and_byte_tensors_stay_eager(device: str) -> None:
    x = torch.randn(5, device=device)
    byte = torch.arange(5, device=device, dtype=torch.uint8)
    run = compiled(lambda x, b: ((torch.complex(x, x) * 2 + 1).abs(), b * 3 + 250))
    magnitude, wrapped = run(x, byte)
    torch.testing.assert_close(magnitude, (torch.complex(x, x) * 2 + 1).abs())
    assert torch.equal(wrapped, byte * 3 + 250)


def test_integer_division_by_a_zero_tensor_is_left_to_eager(device: str) -> None:
    i = torch.tensor([4, 6], device=device)
    run = compiled(lambda i, j: (i // j) * 2 + 1)
    assert torch.equal(run(i, i - 3), (i // (i - 3)) * 2 + 1)
    if device == "cpu":
        with pytest.raises(RuntimeError, match="ZeroDivisionError"):
            run(i, i * 0)


def test_shape_errors_are_those_of_eager(device: str) -> None:
    run = compiled(lambda x, y: torch.exp(x) + y * 2)
    with pytest.raises(Exception, match="must match the size|broadcast|size"):
        run(torch.ones(3, device=device), torch.ones(4, device=device))


def test_failing_fusion_runs_eagerly_with_a_warning(
    device: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from fuser_direct import FusionDefinition

    def fail(self: FusionDefinition, inputs: Any, **_: Any) -> list[Any]:
        raise InputError("refused by the test")

    x = torch.randn(5, 6, device=device)
    monkeypatch.setattr(FusionDefinition, "execute", fail)
    with caplog.at_level(logging.WARNING, logger="fuser_direct.torch_backend"):
        run = compiled(lambda x: (torch.exp(x) + 1).t() * 2)
        assert_near([run(x), run(x)], [(torch.exp(x.double()) + 1).t() * 2] * 2)
    assert sum("runs eagerly" in record.message for record in caplog.records) == 1


def test_runs_without_the_boxed_calls_of_newer_versions(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(torch.fx.graph, "_BoxedCodeGen", raising=False)
    x = torch.randn(4, 8, device=device, requires_grad=True)
    check(lambda x: F.softmax(x * 2, -1).sin(), x, least=2)


def test_autocast_gives_the_dtypes_of_eager(device: str) -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = (x @ w) * 2 + 1
        return y, F.softmax(y, -1), F.layer_norm(y, (16,))

    x, w = (torch.randn(16, 16, device=device) for _ in range(2))
    run = compiled(function)
    with torch.autocast(device, torch.bfloat16):
        got, eager = run(x, w), function(x, w)
    assert [t.dtype for t in got] == [t.dtype for t in eager]
    # A few roundings of bfloat16.
    assert_near([t.float() for t in got], [t.double() for t in eager], tolerance=2.0**-6)


def test_compiled_function_without_gradients_runs_in_inference_mode(device: str) -> None:
    x = torch.randn(4, 8, device=device)
    run = compiled(NORMS["softmax"])
    with torch.inference_mode():
        assert_near(run(x, x), NORMS["softmax"](x.double(), x.double()))


def test_unknown_option_is_refused(device: str) -> None:
    run = compiled(lambda x: torch.exp(x) + 1, options={"no_such": True})
    with pytest.raises(Exception, match="unknown option 'no_such'; known are emulate"):
        run(torch.ones(3, device=device))


def test_backend_is_found_by_name(device: str) -> None:
    torch_backend.register()
    torch_backend.register()
    run = torch.compile(lambda x: torch.exp(x) + 1, backend="fuser_direct")
    x = torch.randn(4, device=device)
    assert_near(run(x), torch.exp(x.double()) + 1)
