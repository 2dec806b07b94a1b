"""The executor on PyTorch tensors: by the DLPack C exchange API, and as before PyTorch 2.10."""

from __future__ import annotations

import gc
import threading
import warnings
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from fuser_direct import _ext
from fuser_direct.errors import InputError
from tests.cpu.executor_support import (
    FLOAT,
    add_program,
    cache,
    elementwise,
    forward_program,
    pointers,
    run_script,
)

torch = pytest.importorskip("torch")

Convert = Callable[[Any], Any]


class OldTensor(torch.Tensor):  # type: ignore[misc, name-defined]
    """A tensor whose type offers no exchange API, as PyTorch's didn't before 2.10."""

    __dlpack_c_exchange_api__ = None


@pytest.fixture(params=["exchange", "attributes"])
def convert(request: pytest.FixtureRequest) -> Convert:
    """Makes a tensor one that is read in the way under test."""
    if request.param == "exchange":
        if not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"):
            pytest.skip("this PyTorch has no exchange API")
        return lambda tensor: tensor
    return lambda tensor: tensor.as_subclass(OldTensor)


def arange(*shape: int) -> Any:
    return torch.arange(int(np.prod(shape)), dtype=torch.float32).reshape(shape)


@pytest.mark.parametrize(
    "x",
    [arange(4, 6), arange(4, 6).t(), arange(2, 3, 4).permute(1, 2, 0), arange(), arange(0, 3)],
    ids=["dense", "transposed", "permuted", "rank 0", "empty"],
)
def test_output_has_the_inputs_layout(convert: Convert, x: Any) -> None:
    executor, compiler = cache(add_program)
    (out,) = executor.execute([convert(x), convert(x)])
    assert isinstance(out, torch.Tensor)
    assert out.stride() == x.stride()
    assert torch.equal(out.as_subclass(torch.Tensor), x + x)
    assert not out.requires_grad
    executor.execute([convert(x.clone()), convert(x.clone())])
    assert len(compiler.calls) == 1


@pytest.mark.parametrize(
    "dtype",
    [
        "float64",
        "float32",
        "float16",
        "bfloat16",
        "int64",
        "int32",
        "bool",
        "complex64",
        "complex128",
    ],
)
def test_every_dtype_crosses_both_ways(convert: Convert, dtype: str) -> None:
    def make(args: Sequence[_ext.ArgInfo]) -> _ext.Program:
        program = _ext.Program(1, 0, 1)
        out = program.add_buffer(*args[0].dtype, args[0].shape, [1, 3])
        program.copy(out, 0)
        program.add_output(out)
        return program

    x = (arange(3, 4) % 2).to(getattr(torch, dtype))
    (out,) = cache(make)[0].execute([convert(x)])
    assert out.dtype is x.dtype
    assert out.stride() == (1, 3)
    assert torch.equal(out.as_subclass(torch.Tensor), x)


def test_view_shares_memory_and_keeps_it_alive(convert: Convert) -> None:
    def make(args: Sequence[_ext.ArgInfo]) -> _ext.Program:
        program = _ext.Program(1, 0, 1)
        program.add_view(0, [2, 2], [1, 3], 1)
        return program

    executor, _ = cache(make)
    x = arange(3, 4)[1:]
    expected = x.as_strided((2, 2), (1, 3), x.storage_offset() + 1).clone()
    (view,) = executor.execute([convert(x)])
    assert view.data_ptr() == x.data_ptr() + 4
    del x
    gc.collect()
    noise = [torch.full((3, 4), -1.0) for _ in range(100)]  # would reuse freed memory
    assert torch.equal(view.as_subclass(torch.Tensor), expected)
    assert len(noise) == 100


def test_expanded_output(convert: Convert) -> None:
    def make(args: Sequence[_ext.ArgInfo]) -> _ext.Program:
        program = _ext.Program(1, 0, 1)
        out = program.add_buffer(*FLOAT, [3, 4], [0, 1])
        program.launch_cpu(elementwise(4, lambda a: a * 2), 4, 100, 0, pointers(0, out))
        program.add_output(out)
        return program

    (out,) = cache(make)[0].execute([convert(arange(4))])
    assert out.stride() == (0, 1)
    assert torch.equal(out.as_subclass(torch.Tensor), (arange(4) * 2).expand(3, 4))


def test_parameters_and_tensors_with_gradients_are_read(convert: Convert) -> None:
    executor, _ = cache(add_program)
    x = torch.nn.Parameter(arange(4))
    y = arange(4).requires_grad_()
    (out,) = executor.execute([convert(x), convert(y)])
    assert torch.equal(out.as_subclass(torch.Tensor), arange(4) * 2)


@pytest.mark.parametrize("size", [1, 4])
def test_lazy_conjugate_and_negation_are_refused_not_misread(convert: Convert, size: int) -> None:
    executor, _ = cache(forward_program)
    x = torch.arange(size).to(torch.complex64).conj()
    assert x.is_conj()
    with pytest.raises(InputError, match="argument 0 is a lazy conjugate.*resolve_conj"):
        executor.execute([convert(x)])
    assert x.imag.is_neg()
    with pytest.raises(InputError, match="argument 1 is a lazy negation.*resolve_neg"):
        executor.execute([1, convert(x.imag)])
    executor.execute([convert(x.resolve_conj()), convert(x.resolve_conj().imag)])


def test_tensors_without_memory_are_refused_by_position() -> None:
    from torch._subclasses import FakeTensorMode

    executor, _ = cache(forward_program)
    for tensor in (torch.empty(3, device="meta"), torch.eye(3).to_sparse()):
        with pytest.raises(InputError, match="argument 1 can't be read"):
            executor.execute([1, tensor])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fake = FakeTensorMode().from_tensor(torch.ones(3))
        with pytest.raises(InputError, match="argument 1 (has no memory|can't be read)"):
            executor.execute([1, fake])


def test_framework_of_outputs_is_that_of_the_first_tensor() -> None:
    executor, _ = cache(add_program)
    x, y = arange(4), arange(4).numpy()
    assert isinstance(executor.execute([x, y])[0], torch.Tensor)
    assert isinstance(executor.execute([y, x])[0], np.ndarray)


def test_without_a_tensor_outputs_are_of_pytorch_if_it_is_imported() -> None:
    script = """
        import sys
        from tests.cpu.executor_support import FLOAT, cache
        from fuser_direct import _ext
        def make(args):
            program = _ext.Program(1, 0, len(args))
            program.add_output(program.add_buffer(*FLOAT, [3], [1]))
            return program
        executor, _ = cache(make)
        print(type(executor.execute([1])[0]).__module__, "torch" in sys.modules)
        import torch
        print(type(executor.execute([1])[0]).__module__)
    """
    assert run_script(script).split() == ["numpy", "False", "torch"]


def test_in_place_update_returns_the_argument_itself(convert: Convert) -> None:
    def make(args: Sequence[_ext.ArgInfo]) -> _ext.Program:
        program = _ext.Program(1, 0, 1)
        program.launch_cpu(elementwise(4, lambda a: a + 1), 4, 100, 0, pointers(0, 0))
        program.writes_input(0)
        program.add_output(0)
        return program

    executor, _ = cache(make)
    x = convert(arange(4))
    assert executor.execute([x])[0] is x
    assert torch.equal(x.as_subclass(torch.Tensor), arange(4) + 1)
    with pytest.raises(InputError, match="argument 0.*may share memory"):
        executor.execute([convert(torch.zeros(1).expand(4))])


def test_output_may_be_freed_on_another_thread_and_large_memory_is_reused() -> None:
    count = 2 << 20

    def make(args: Sequence[_ext.ArgInfo]) -> _ext.Program:
        program = _ext.Program(1, 0, 1)
        out = program.add_buffer(*FLOAT, [2, count // 2], [1, 2])
        program.launch_cpu(elementwise(count, lambda a: a + 1), count, 1 << 40, 0, pointers(0, out))
        program.add_output(out)
        return program

    executor, _ = cache(make)
    _ext.release_cpu_pool()
    x = arange(2, count // 2).t().contiguous().t()
    holder = executor.execute([x])
    address = holder[0].data_ptr()
    assert torch.equal(holder[0], x + 1)
    thread = threading.Thread(target=holder.clear)
    thread.start()
    thread.join()
    assert _ext.cpu_pool_bytes() == x.numel() * 4
    assert executor.execute([x])[0].data_ptr() == address
    _ext.release_cpu_pool()
    assert _ext.cpu_pool_bytes() == 0


def test_argument_is_released_after_the_call(convert: Convert) -> None:
    executor, _ = cache(add_program)
    x = convert(arange(4))
    gone = weakref.ref(x)
    executor.execute([x, x])
    del x
    gc.collect()
    assert gone() is None
