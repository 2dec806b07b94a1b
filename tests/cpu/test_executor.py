"""The executor: reading arguments, the call cache, running programs, outputs."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from fuser_direct import _ext
from fuser_direct.errors import InputError, UnsupportedError, UsageError
from tests.cpu.executor_support import (
    BFLOAT16,
    BOOL,
    FLOAT,
    CudaTensor,
    add_program,
    cache,
    elementwise,
    forward_program,
    kernel,
    memory,
    pointers,
)


def arange(*shape: int) -> np.ndarray:
    return np.arange(int(np.prod(shape)), dtype=np.float32).reshape(shape)


# ---- arguments and outputs ----


def test_numpy_in_numpy_out() -> None:
    executor, compiler = cache(add_program)
    x, y = arange(4, 6), arange(4, 6) * 2
    (out,) = executor.execute([x, y])
    assert type(out) is np.ndarray
    np.testing.assert_array_equal(out, x + y)
    assert compiler.calls[0][1:] == (None, ([], []))


def test_numpy_output_keeps_a_permuted_layout() -> None:
    executor, _ = cache(add_program)
    x, y = arange(4, 6).T, arange(4, 6).T
    (out,) = executor.execute([x, y])
    assert out.strides == x.strides
    np.testing.assert_array_equal(out, x + y)


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,), (1, 5, 1)])
def test_empty_and_rank_zero_tensors_run(shape: tuple[int, ...]) -> None:
    executor, _ = cache(add_program)
    x = arange(*shape)
    (out,) = executor.execute([x, x])
    assert out.shape == shape
    np.testing.assert_array_equal(out, x + x)


def test_any_iterable_of_inputs_and_nested_lists_are_flattened_one_level() -> None:
    executor, compiler = cache(forward_program)
    x = arange(2)
    assert executor.execute(iter([x, [1, 2.0], (True,)]))[0] is x
    kinds = [arg.kind for arg in compiler.calls[0][0]]
    assert kinds == ["", "int", "float", "bool"]
    executor.execute([x, [[1]]])
    assert compiler.calls[1][0][1].type_name == "list"


def test_scalars_reach_the_compiler_with_their_values() -> None:
    executor, compiler = cache(forward_program)
    executor.execute([arange(1), True, -7, 2.5, 1 + 2j])
    values = [arg.value for arg in compiler.calls[0][0][1:]]
    assert values == [True, -7, 2.5, 1 + 2j]
    assert [type(value) for value in values] == [bool, int, float, complex]


def test_int_beyond_64_bits_is_refused() -> None:
    executor, compiler = cache(forward_program)
    with pytest.raises(InputError, match="64 bits"):
        executor.execute([arange(1), 1 << 63])
    assert not compiler.calls


def test_object_of_unknown_type_reaches_the_compiler_which_raises() -> None:
    def refuse(args: Sequence[_ext.ArgInfo]) -> _ext.Program:
        raise InputError(f"argument 1 is a {args[1].type_name}")

    executor, compiler = cache(refuse)
    for _ in range(2):
        with pytest.raises(InputError, match="argument 1 is a NoneType"):
            executor.execute([arange(1), None])
    assert len(compiler.calls) == 2
    assert executor.lookup([arange(1), None]) is None


def test_bool_and_bfloat16_arrays_keep_their_types() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")

    def make(args: Sequence[_ext.ArgInfo]) -> _ext.Program:
        program = _ext.Program(1, 0, 2)
        for i, arg in enumerate(args):
            out = program.add_buffer(*arg.dtype, arg.shape, arg.strides)
            program.copy(out, i)
            program.add_output(out)
        return program

    executor, compiler = cache(make)
    flags = np.array([[True, False], [False, True]])
    halves = np.array([1.5, -2.0, 3.0], dtype=ml_dtypes.bfloat16)
    outs = executor.execute([flags, halves])
    assert [arg.dtype for arg in compiler.calls[0][0]] == [BOOL, BFLOAT16]
    assert outs[0].dtype == np.bool_
    assert outs[1].dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(outs[0], flags)
    np.testing.assert_array_equal(outs[1].astype(np.float32), halves.astype(np.float32))


@pytest.mark.parametrize(
    ("array", "fragment"),
    [
        (np.zeros(3, dtype=">f4"), "byte order"),
        (np.zeros(3, dtype="datetime64[s]"), "datetime64"),
        (np.zeros(9, dtype=np.uint8)[1:].view(np.float32), "not aligned"),
        (np.zeros(3, dtype=[("a", "f4"), ("b", "u1")])["a"], "stride"),
    ],
    ids=["byte order", "dtype", "alignment", "stride"],
)
def test_unusable_array_is_refused_by_position(array: np.ndarray, fragment: str) -> None:
    executor, compiler = cache(forward_program)
    with pytest.raises(InputError, match=f"argument 1.*{fragment}"):
        executor.execute([arange(1), array])
    assert not compiler.calls


def test_masked_array_is_no_tensor() -> None:
    executor, compiler = cache(forward_program)
    executor.execute([arange(1), np.ma.masked_array(arange(2), mask=[True, False])])
    assert compiler.calls[0][0][1].type_name == "MaskedArray"
    assert not compiler.calls[0][0][1].is_tensor


def test_array_known_only_by_dlpack_is_read() -> None:
    class Producer:
        def __init__(self, array: np.ndarray) -> None:
            self.array = array

        def __dlpack__(self, **options: Any) -> Any:
            return self.array.__dlpack__()

        def __dlpack_device__(self) -> tuple[int, int]:
            return (1, 0)

    executor, _ = cache(add_program)
    x = arange(2, 3)
    (out,) = executor.execute([Producer(x), Producer(x)])
    np.testing.assert_array_equal(np.asarray(out), x + x)


def test_input_as_output_is_the_very_object() -> None:
    executor, _ = cache(forward_program)
    x = arange(3)
    assert executor.execute([x])[0] is x


def test_buffer_returned_twice_is_one_object() -> None:
    def make(args: Sequence[_ext.ArgInfo]) -> _ext.Program:
        program = add_program(args)
        program.add_output(2)
        return program

    first, second = cache(make)[0].execute([arange(3), arange(3)])
    assert first is second


def test_view_shares_memory_and_keeps_it_alive() -> None:
    def make(args: Sequence[_ext.ArgInfo]) -> _ext.Program:
        program = _ext.Program(1, 0, 1)
        program.add_view(0, [2, 2], [1, 3], 1)
        return program

    executor, _ = cache(make)
    base = arange(3, 4)
    expected = np.lib.stride_tricks.as_strided(base[:, 1:], (2, 2), (4, 12)).copy()
    owner = weakref.ref(base)
    (view,) = executor.execute([base])
    assert np.shares_memory(view, base)
    del base
    gc.collect()
    assert owner() is not None
    np.testing.assert_array_equal(view, expected)
    del view
    gc.collect()
    assert owner() is None


def test_expanded_output_has_stride_zero() -> None:
    def make(args: Sequence[_ext.ArgInfo]) -> _ext.Program:
        program = _ext.Program(1, 0, 1)
        out = program.add_buffer(*FLOAT, [3, 4], [0, 1])
        program.launch_cpu(elementwise(4, lambda a: a * 2), 4, 100, 0, pointers(0, out))
        program.add_output(out)
        return program

    (out,) = cache(make)[0].execute([arange(4)])
    assert out.strides == (0, 4)
    np.testing.assert_array_equal(out, np.broadcast_to(arange(4) * 2, (3, 4)))


# ---- the key of a call ----


def misses(*calls: Sequence[Any], shape_scalars: Sequence[int] = ()) -> int:
    executor, compiler = cache(forward_program, shape_scalars)
    for call in calls:
        executor.execute(call)
    counters = executor.counters()
    assert counters["calls"] == len(calls)
    assert counters["hits"] == len(calls) - len(compiler.calls)
    assert counters["misses"] == len(compiler.calls)
    return len(compiler.calls)


def aligned(shape: tuple[int, ...], offset_bytes: int = 0) -> np.ndarray:
    size = int(np.prod(shape)) * 4
    raw = np.zeros(size + 128, dtype=np.uint8)
    start = -raw.ctypes.data % 64 + offset_bytes
    return raw[start : start + size].view(np.float32).reshape(shape)


def strided(shape: tuple[int, ...], strides: tuple[int, ...]) -> np.ndarray:
    """A 64-byte aligned array; strides in elements, not negative."""
    base = aligned((4096,))
    return np.lib.stride_tricks.as_strided(base, shape, [s * 4 for s in strides])


def test_same_kind_of_call_compiles_once() -> None:
    assert misses([aligned((2, 3)), 1], [aligned((2, 3)), 5], [aligned((2, 3), 4), -1]) == 1


@pytest.mark.parametrize(
    "other",
    [
        [aligned((3, 2)), 1],
        [aligned((6,)), 1],
        [strided((2, 3), (4, 1)), 1],
        [aligned((2, 3))[::-1], 1],
        [aligned((2, 3)).view(np.int32), 1],
        [aligned((2, 3)), 1.0],
        [aligned((2, 3)), True],
        [aligned((2, 3)), 1, 1],
    ],
    ids=["shape", "rank", "strides", "sign", "dtype", "float", "bool", "count"],
)
def test_other_kind_of_call_compiles_again(other: list[Any]) -> None:
    assert misses([aligned((2, 3)), 1], other) == 2


def test_alignment_of_a_cuda_tensor_matters() -> None:
    executor, compiler = cache(forward_program)
    for address in (1 << 20, (1 << 20) + 16, (1 << 20) + 4096, (1 << 20) + 4):
        executor.execute([CudaTensor(address)])
    alignments = [args[0].alignment for args, _, _ in compiler.calls]
    assert alignments == [64, 16, 4]
    assert compiler.calls[0][0][0].device_type == 2
    assert compiler.calls[0][0][0].device_id == 1


def test_strides_that_move_nothing_do_not_matter() -> None:
    assert misses([strided((8, 1, 4), (4, 77, 1))], [strided((8, 1, 4), (4, 5, 1))]) == 1
    assert misses([strided((0, 4), (4, 1))], [strided((0, 4), (9, 3))]) == 1


def test_compiler_sees_canonical_strides_where_they_move_nothing() -> None:
    executor, compiler = cache(forward_program)
    executor.execute([strided((8, 1, 4), (4, 77, 1)), strided((0, 4), (9, 3))])
    assert [arg.strides for arg in compiler.calls[0][0]] == [(4, 4, 1), (4, 1)]


def test_value_of_a_shape_scalar_matters() -> None:
    calls = [[arange(1), 2, 3], [arange(1), 2, 4], [arange(1), 5, 4]]
    assert misses(*calls) == 1
    assert misses(*calls, shape_scalars=[1]) == 2
    assert misses(*calls, shape_scalars=[1, 2]) == 3


def test_device_and_options_are_part_of_the_key() -> None:
    executor, compiler = cache(forward_program)
    x = arange(1)
    executor.execute([x], device=0, _enable_options=["a"])
    executor.execute([x], device=0, _enable_options=["b"])
    executor.execute([x], device=1, _enable_options=["b"])
    executor.execute([x], device=1, _disable_options=["b"])
    executor.execute([x], device=1, _disable_options=["b"])
    assert [call[1:] for call in compiler.calls] == [
        (0, (["a"], [])),
        (0, (["b"], [])),
        (1, (["b"], [])),
        (1, ([], ["b"])),
    ]


def test_lookup_compiles_nothing_and_gives_the_program_that_runs() -> None:
    executor, compiler = cache(add_program)
    x = arange(2)
    assert executor.lookup([x, x]) is None
    assert executor.most_recent is None
    executor.execute([x, x])
    assert executor.lookup([x, x]) is executor.most_recent
    assert executor.lookup([x[:1], x[:1]]) is None
    assert len(compiler.calls) == 1


def test_cache_is_bounded_and_drops_the_oldest() -> None:
    executor, compiler = cache(forward_program, [1])
    x = arange(1)
    for value in range(4097):
        executor.execute([x, value])
    assert executor.lookup([x, 0]) is None
    assert executor.lookup([x, 1]) is not None
    assert len(compiler.calls) == 4097


# ---- misses ----


def test_failed_compile_is_not_cached() -> None:
    attempts = []

    def make(args: Sequence[_ext.ArgInfo]) -> _ext.Program:
        attempts.append(1)
        if len(attempts) == 1:
            raise UnsupportedError("not this time")
        return forward_program(args)

    executor, _ = cache(make)
    x = arange(1)
    with pytest.raises(UnsupportedError, match="not this time"):
        executor.execute([x])
    assert executor.execute([x])[0] is x
    assert len(attempts) == 2


def test_compiler_must_return_a_fitting_program() -> None:
    executor, _ = cache(lambda args: None)  # type: ignore[arg-type,return-value]
    with pytest.raises(UsageError, match="must return a Program"):
        executor.execute([arange(1)])
    executor, _ = cache(lambda args: _ext.Program(1, 0, 3))
    with pytest.raises(UsageError, match="3 inputs from 1"):
        executor.execute([arange(1)])


def test_compiler_that_runs_its_own_call_is_refused_not_hung() -> None:
    x = arange(1)

    def make(args: Sequence[_ext.ArgInfo]) -> _ext.Program:
        executor.execute([x])
        return forward_program(args)

    executor, _ = cache(make)
    with pytest.raises(UsageError, match="the very call"):
        executor.execute([x])


def run_threads(count: int, body: Any) -> list[Any]:
    """Results of body(i) on `count` threads that start together; exceptions are results too."""
    results: list[Any] = [None] * count
    barrier = threading.Barrier(count)

    def run(i: int) -> None:
        barrier.wait()
        try:
            results[i] = body(i)
        except Exception as error:
            results[i] = error

    threads = [threading.Thread(target=run, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return results


def test_threads_with_one_key_compile_once() -> None:
    def make(args: Sequence[_ext.ArgInfo]) -> _ext.Program:
        threading.Event().wait(0.2)  # lets the others in
        return add_program(args)

    executor, compiler = cache(make)
    x = aligned((64,))
    x[:] = arange(64)
    results = run_threads(8, lambda i: executor.execute([x, x])[0])
    assert len(compiler.calls) == 1
    for out in results:
        np.testing.assert_array_equal(out, x + x)


def test_threads_that_wait_for_a_failing_compile_all_get_the_error() -> None:
    def make(args: Sequence[_ext.ArgInfo]) -> _ext.Program:
        threading.Event().wait(0.05)
        raise UnsupportedError("no")

    executor, _ = cache(make)
    x = arange(1)
    results = run_threads(4, lambda i: executor.execute([x]))
    assert [type(result) for result in results] == [UnsupportedError] * 4


def test_threads_run_different_calls_at_once() -> None:
    executor, _ = cache(add_program)

    def body(i: int) -> bool:
        x = arange(i + 1)
        return all(np.array_equal(executor.execute([x, x])[0], x + x) for _ in range(50))

    assert run_threads(4, body) == [True] * 4


# ---- writing into inputs ----


def in_place_program(args: Sequence[_ext.ArgInfo]) -> _ext.Program:
    """x += 1, over x's own strides, for a matrix."""
    program = _ext.Program(1, 0, len(args))
    rows, columns = args[0].shape
    stride = args[0].strides[0]

    def body(slots: Any, begin: int, end: int, scratch: int) -> None:
        for row in range(begin, end):
            memory(slots[0] + row * stride * 4, columns)[:] += 1

    program.launch_cpu(kernel(body), rows, 100, 0, pointers(0))
    program.writes_input(0)
    program.add_output(0)
    return program


def test_input_is_updated_through_its_own_strides() -> None:
    executor, _ = cache(in_place_program)
    base = arange(2, 3)
    x = base[:, :2]
    expected = base.copy()
    expected[:, :2] += 1
    (out,) = executor.execute([x])
    assert out is x
    np.testing.assert_array_equal(base, expected)


def test_read_only_input_is_not_written() -> None:
    executor, _ = cache(in_place_program)
    x = arange(2, 2)
    x.flags.writeable = False
    with pytest.raises(InputError, match="argument 0.*read-only"):
        executor.execute([x])
    np.testing.assert_array_equal(x, arange(2, 2))


def test_input_that_overlaps_itself_is_not_written() -> None:
    executor, _ = cache(in_place_program)
    for strides in [(0, 1), (1, 1)]:
        with pytest.raises(InputError, match="argument 0.*may share memory"):
            executor.execute([strided((2, 2), strides)])


def test_written_input_must_not_overlap_another_one() -> None:
    executor, _ = cache(in_place_program)
    base = arange(4, 2)
    with pytest.raises(InputError, match="argument 0.*shares memory with argument 2"):
        executor.execute([base[1:3], 5, base[2:4]])
    np.testing.assert_array_equal(base, arange(4, 2))
    executor.execute([base[:2], 5, base[2:]])
    executor.execute([base[:2], 5, base[:2]])


@pytest.mark.parametrize(
    "other",
    [lambda base: base[:, 2:4], lambda base: base[:, 4:], lambda base: base[1:, 3:4]],
    ids=["next", "rest", "column"],
)
def test_slices_of_one_array_that_share_nothing_are_fine(other: Any) -> None:
    executor, _ = cache(in_place_program)
    base = arange(4, 6)
    executor.execute([base[:, :2], other(base)])
    assert base[0, 0] == 1


def test_shared_memory_is_never_missed() -> None:
    executor, _ = cache(in_place_program)
    rng = np.random.default_rng(0)
    base = np.zeros(40, dtype=np.float32)
    refused = 0
    for _ in range(400):
        strides = sorted(rng.integers(1, 9, 2), reverse=True)
        views = []
        for _ in range(2):
            shape = rng.integers(1, 4, 2)
            sign = rng.choice([1, -1])
            start = rng.integers(0, 8) + (0 if sign > 0 else (shape[0] - 1) * strides[0])
            steps = (sign * strides[0] * 4, strides[1] * 4)
            views.append(np.lib.stride_tricks.as_strided(base[start:], shape, steps))
        try:
            executor.execute(views)
        except InputError:
            refused += 1
        else:
            assert not np.shares_memory(*views) or same_place(*views)
    assert 50 < refused < 350


def same_place(x: np.ndarray, y: np.ndarray) -> bool:
    return x.ctypes.data == y.ctypes.data and x.shape == y.shape


@pytest.mark.parametrize(
    "other",
    [lambda base: base[:, 1:3], lambda base: base[3:, 1:2], lambda base: base[1:, :1]],
    ids=["columns", "corner", "rows"],
)
def test_slices_of_one_array_that_share_an_element_are_refused(other: Any) -> None:
    executor, _ = cache(in_place_program)
    base = arange(4, 6)
    with pytest.raises(InputError, match="shares memory"):
        executor.execute([base[:, :2], other(base)])


def test_memory_is_checked_on_cache_hits_too() -> None:
    executor, compiler = cache(in_place_program)
    base = aligned((4, 2))
    executor.execute([base[:2], base[2:]])
    with pytest.raises(InputError, match="shares memory"):
        executor.execute([base[:2], base[1:3]])
    assert len(compiler.calls) == 1


def test_one_memory_for_two_written_inputs_is_refused() -> None:
    def make(args: Sequence[_ext.ArgInfo]) -> _ext.Program:
        program = in_place_program(args)
        program.writes_input(1)
        return program

    x = arange(2, 2)
    with pytest.raises(InputError, match="argument 0.*argument 1"):
        cache(make)[0].execute([x, x])
