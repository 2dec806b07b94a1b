"""Running programs: argument blocks, lifetimes, Python steps, threads, forks, reused memory."""

from __future__ import annotations

import gc
import struct
import threading
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from fuser_direct import _ext
from fuser_direct.errors import InputError, LaunchError, UnsupportedError, UsageError
from tests.cpu.executor_support import (
    FLOAT,
    add_program,
    cache,
    elementwise,
    forward_program,
    kernel,
    memory,
    pointers,
    run_script,
)


def arange(*shape: int) -> np.ndarray:
    return np.arange(int(np.prod(shape)), dtype=np.float32).reshape(shape)


# ---- kernel arguments ----


def slots_of(args: Sequence[tuple[Any, ...]], inputs: Sequence[Any], count: int) -> list[bytes]:
    """The first `count` 8-byte slots that a kernel with these arguments gets."""
    seen: list[bytes] = []

    def body(slots: Any, begin: int, end: int, scratch: int) -> None:
        seen.extend(struct.pack("<q", slots[i]) for i in range(count))

    def make(infos: Sequence[_ext.ArgInfo]) -> _ext.Program:
        program = _ext.Program(1, 0, len(infos))
        program.launch_cpu(kernel(body), 1, 100, 0, args)
        return program

    assert cache(make)[0].execute(inputs) == []
    return seen


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        ("f32", 0.1, struct.pack("<fi", 0.1, 0)),
        ("f64", 0.1, struct.pack("<d", 0.1)),
        ("i64", -3, struct.pack("<q", -3)),
        ("i32", -3, struct.pack("<q", -3)),
        ("u8", True, struct.pack("<q", 1)),
        ("f16", 0.1, struct.pack("<fi", 0.0999755859375, 0)),
        ("bf16", 0.1, struct.pack("<fi", 0.10009765625, 0)),
        ("c64", 1 - 2j, struct.pack("<ff", 1, -2)),
        ("c128", 1 - 2j, struct.pack("<dd", 1, -2)),
        ("f32", float("nan"), struct.pack("<fi", float("nan"), 0)),
        ("f16", 70000.0, struct.pack("<fi", float("inf"), 0)),
        ("f16", 1e-7, struct.pack("<fi", 2.0**-23, 0)),
        ("f64", 3, struct.pack("<d", 3.0)),
        ("i64", True, struct.pack("<q", 1)),
        ("c64", 2, struct.pack("<ff", 2, 0)),
    ],
)
def test_value_is_packed_by_its_type(kind: str, value: Any, expected: bytes) -> None:
    count = len(expected) // 8
    assert b"".join(slots_of([(kind, value)], [], count)) == expected
    assert b"".join(slots_of([("scalar", 0, kind)], [value], count)) == expected


def test_arguments_after_a_double_complex_come_two_slots_later() -> None:
    args = [("i64", 1), ("scalar", 0, "c128"), ("i64", 2), ("c128", 5j), ("i64", 3)]
    slots = slots_of(args, [2 + 4j], 7)
    expected = struct.pack("<qddqddq", 1, 2.0, 4.0, 2, 0.0, 5.0, 3)
    assert b"".join(slots) == expected


def test_pointer_offset_counts_elements_of_the_buffer() -> None:
    x = np.arange(4, dtype=np.float64)
    (slot,) = slots_of([("pointer", 0, 3)], [x], 1)
    assert struct.unpack("<q", slot)[0] == x.ctypes.data + 24


@pytest.mark.parametrize(
    "value",
    [
        np.array(True),
        np.array(-5, dtype=np.int32),
        np.array(1 << 40, dtype=np.int64),
        np.array(1.5, dtype=np.float16),
        np.array(-2.5, dtype=np.float32),
        np.array(0.1, dtype=np.float64),
    ],
    ids=lambda value: str(value.dtype),
)
def test_item_of_a_rank_zero_tensor(value: np.ndarray) -> None:
    (slot,) = slots_of([("item", 0, "f64")], [value], 1)
    assert struct.unpack("<d", slot)[0] == float(value)


def test_item_of_a_complex_tensor() -> None:
    value = np.array(1 + 2j, dtype=np.complex64)
    assert b"".join(slots_of([("item", 0, "c128")], [value], 2)) == struct.pack("<dd", 1, 2)


@pytest.mark.parametrize(
    ("arg", "fragment"),
    [
        (("pointer", 7, 0), "buffer 7 does not exist"),
        (("scalar", 1, "f32"), "input 1 does not exist"),
        (("item", -1, "f32"), "input -1 does not exist"),
        (("scalar", 0, "f8"), "got 'f8'"),
        (("f32", "one"), "must be a Python number"),
        (("pointer", "one", 0), "wrong type"),
        ("f32", "must be a tuple"),
    ],
)
def test_wrong_kernel_argument_is_refused(arg: Any, fragment: str) -> None:
    program = _ext.Program(1, 0, 1)
    with pytest.raises(UsageError, match=fragment):
        program.launch_cpu(kernel(lambda *_: None), 1, 1, 0, [arg])


def test_program_is_closed_once_an_executor_has_it() -> None:
    program = _ext.Program(1, 0, 1)
    program.add_output(0)
    cache(lambda args: program)[0].execute([arange(1)])
    with pytest.raises(UsageError, match="can't be changed"):
        program.add_output(0)


def test_steps_of_another_device_are_refused() -> None:
    gpu = _ext.Program(2, 0, 1)
    with pytest.raises(UsageError, match="runs on a CUDA device"):
        gpu.launch_cpu(kernel(lambda *_: None), 1, 1, 0, [])
    with pytest.raises(UnsupportedError, match="launch a kernel that copies"):
        gpu.copy(0, 0)
    image = _ext.CudaKernel(b"", "k")
    with pytest.raises(UsageError, match="runs on the CPU"):
        _ext.Program(1, 0, 1).launch_cuda(image, (1, 1, 1), (1, 1, 1), 0, [])
    with pytest.raises(LaunchError, match="outside"):
        gpu.launch_cuda(image, (1 << 31, 1, 1), (1, 1, 1), 0, [])


# ---- steps ----


@pytest.mark.parametrize(
    ("dst", "src"),
    [
        ((12, 4, 1), (12, 4, 1)),
        ((1, 2, 6), (12, 4, 1)),
        ((12, 4, 1), (0, 4, 1)),
        ((12, 1, 3), (24, 8, 2)),
    ],
    ids=["dense", "permuted", "expanded", "gaps"],
)
@pytest.mark.parametrize("dtype", [np.bool_, np.float16, np.float32, np.float64, np.complex128])
def test_copy_between_strides(dst: Any, src: Any, dtype: Any) -> None:
    base = (np.arange(64) % 7).astype(dtype)
    shape = (2, 3, 4)
    x = np.lib.stride_tricks.as_strided(base, shape, [s * base.itemsize for s in src])

    def make(args: Sequence[_ext.ArgInfo]) -> _ext.Program:
        program = _ext.Program(1, 0, 1)
        out = program.add_buffer(*args[0].dtype, shape, dst)
        program.copy(out, 0)
        program.add_output(out)
        return program

    (out,) = cache(make)[0].execute([x])
    assert out.strides == tuple(s * base.itemsize for s in dst)
    np.testing.assert_array_equal(out, x)


def test_copy_between_different_sizes_is_refused() -> None:
    def make(args: Sequence[_ext.ArgInfo]) -> _ext.Program:
        program = _ext.Program(1, 0, 1)
        program.copy(program.add_buffer(*FLOAT, [3], [1]), 0)
        return program

    with pytest.raises(UsageError, match=r"\[3\] and \[4\]"):
        cache(make)[0].execute([arange(4)])


def doubling_chain(seen: list[Any]) -> Any:
    """x -> 2x by a kernel -> a Python step that notes its input -> another Python step -> out."""

    def first(t: np.ndarray) -> tuple[np.ndarray]:
        seen.append(weakref.ref(t))
        return (t + 1,)

    def second(t: np.ndarray) -> tuple[np.ndarray]:
        gc.collect()
        seen.append(seen[0]() is None)
        return (t * 10,)

    def make(args: Sequence[_ext.ArgInfo]) -> _ext.Program:
        program = _ext.Program(1, 0, 1)
        a, b, c = (program.add_buffer(*FLOAT, [4], [1]) for _ in range(3))
        program.launch_cpu(elementwise(4, lambda x: x * 2), 4, 100, 0, pointers(0, a))
        program.call(first, [a], [b])
        program.call(second, [b], [c])
        program.add_output(c)
        return program

    return make


def test_python_steps_get_and_give_tensors() -> None:
    (out,) = cache(doubling_chain([]))[0].execute([arange(4)])
    np.testing.assert_array_equal(out, (arange(4) * 2 + 1) * 10)


def test_intermediate_is_freed_after_its_last_reader() -> None:
    seen: list[Any] = []
    cache(doubling_chain(seen))[0].execute([arange(4)])
    assert seen[1] is True


def test_kernel_reads_what_a_python_step_made() -> None:
    def make(args: Sequence[_ext.ArgInfo]) -> _ext.Program:
        program = _ext.Program(1, 0, 1)
        a, out = (program.add_buffer(*FLOAT, [4], [1]) for _ in range(2))
        program.call(lambda x: (x + 1,), [0], [a])
        program.launch_cpu(elementwise(4, lambda x: x * 2), 4, 100, 0, pointers(a, out))
        program.add_output(out)
        program.add_output(a)
        return program

    doubled, made = cache(make)[0].execute([arange(4)])
    np.testing.assert_array_equal(made, arange(4) + 1)
    np.testing.assert_array_equal(doubled, (arange(4) + 1) * 2)


@pytest.mark.parametrize(
    ("function", "fragment"),
    [
        (lambda x: x, "return a tuple"),
        (lambda x: (x, x), "2 tensors for 1"),
        (lambda x: (1.0,), "is no tensor"),
        (lambda x: (x[:3],), r"sizes \[3\]"),
        (lambda x: (x.astype(np.float64),), "dtype"),
        (lambda x: (x[::-1],), r"strides \[-1\]"),
    ],
    ids=["no tuple", "count", "scalar", "sizes", "dtype", "strides"],
)
def test_python_step_with_another_result_is_refused(function: Any, fragment: str) -> None:
    def make(args: Sequence[_ext.ArgInfo]) -> _ext.Program:
        program = _ext.Program(1, 0, 1)
        out = program.add_buffer(*FLOAT, [4], [1])
        program.call(function, [0], [out])
        program.add_output(out)
        return program

    with pytest.raises(UsageError, match=fragment):
        cache(make)[0].execute([arange(4)])


def test_error_of_a_python_step_comes_through_and_the_next_call_works() -> None:
    state = {"fails": True}

    def step(x: np.ndarray) -> tuple[np.ndarray]:
        if state["fails"]:
            raise ZeroDivisionError("from the step")
        return (x + 1,)

    def make(args: Sequence[_ext.ArgInfo]) -> _ext.Program:
        program = _ext.Program(1, 0, 1)
        a, out = (program.add_buffer(*FLOAT, [4], [1]) for _ in range(2))
        program.launch_cpu(elementwise(4, lambda x: x * 2), 4, 100, 0, pointers(0, a))
        program.call(step, [a], [out])
        program.add_output(out)
        return program

    executor, _ = cache(make)
    with pytest.raises(ZeroDivisionError, match="from the step"):
        executor.execute([arange(4)])
    state["fails"] = False
    np.testing.assert_array_equal(executor.execute([arange(4)])[0], arange(4) * 2 + 1)


def test_python_step_may_run_another_executor() -> None:
    inner, _ = cache(add_program)

    def make(args: Sequence[_ext.ArgInfo]) -> _ext.Program:
        program = _ext.Program(1, 0, 2)
        a, out = (program.add_buffer(*FLOAT, [4], [1]) for _ in range(2))
        program.call(lambda x, y: tuple(inner.execute([x, y])), [0, 1], [a])
        program.launch_cpu(elementwise(4, lambda x, y: x * y), 4, 100, 0, pointers(a, 1, out))
        program.add_output(out)
        return program

    x, y = arange(4), arange(4) + 3
    np.testing.assert_array_equal(cache(make)[0].execute([x, y])[0], (x + y) * y)


def test_executor_in_a_reference_cycle_is_collected() -> None:
    class Owner(_ext.ExecutorCache):
        def __init__(self) -> None:
            super().__init__(self.compile, [])

        def compile(self, args: Any, device: Any, options: Any) -> _ext.Program:
            return forward_program(args)

    owner = Owner()
    owner.execute([arange(1)])
    gone = weakref.ref(owner)
    del owner
    gc.collect()
    assert gone() is None


# ---- threads ----


class Chunks:
    """A program of `items` work items that notes which thread ran which, and with what scratch.

    threads: that many threads must be at work at once, or the run fails.
    """

    def __init__(self, items: int, grain: int, scratch_bytes: int = 0, threads: int = 1) -> None:
        self.done: list[tuple[int, int, int, int]] = []
        self.arrived: set[int] = set()
        meeting = threading.Barrier(threads)

        def body(slots: Any, begin: int, end: int, scratch: int) -> None:
            thread = threading.get_ident()
            if thread not in self.arrived:
                self.arrived.add(thread)
                meeting.wait(30)
            self.done.append((begin, end, thread, scratch))

        def make(args: Sequence[_ext.ArgInfo]) -> _ext.Program:
            program = _ext.Program(1, 0, 0)
            program.launch_cpu(kernel(body), items, grain, scratch_bytes, [])
            return program

        self.executor, _ = cache(make)

    def run(self) -> list[tuple[int, int, int, int]]:
        self.done.clear()
        self.arrived.clear()
        self.executor.execute([])
        return self.done

    def items(self) -> list[int]:
        return sorted(i for begin, end, _, _ in self.done for i in range(begin, end))


@pytest.fixture
def two_threads() -> Any:
    _ext.set_cpu_threads(2)
    yield
    _ext.set_cpu_threads(0)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("items", [0, 1, 2, 7, 64, 1000])
def test_every_work_item_runs_once(items: int) -> None:
    chunks = Chunks(items, grain=1)
    chunks.run()
    assert chunks.items() == list(range(items))


@pytest.mark.usefixtures("two_threads")
def test_no_more_items_than_the_grain_run_on_the_calling_thread() -> None:
    done = Chunks(8, grain=8).run()
    assert [chunk[:3] for chunk in done] == [(0, 8, threading.get_ident())]


def test_one_thread_runs_all_at_once() -> None:
    _ext.set_cpu_threads(1)
    try:
        assert [chunk[:3] for chunk in Chunks(64, 1).run()] == [(0, 64, threading.get_ident())]
    finally:
        _ext.set_cpu_threads(0)


@pytest.mark.usefixtures("two_threads")
def test_two_threads_share_the_work() -> None:
    chunks = Chunks(64, grain=1, threads=2)
    assert len({thread for _, _, thread, _ in chunks.run()}) == 2
    assert chunks.items() == list(range(64))


@pytest.mark.usefixtures("two_threads")
def test_each_thread_has_aligned_scratch_of_its_own() -> None:
    chunks = Chunks(64, grain=1, scratch_bytes=1000, threads=2)
    scratch = {thread: address for _, _, thread, address in chunks.run()}
    assert len(scratch) == 2
    assert all(address % 64 == 0 and address != 0 for address in scratch.values())
    low, high = sorted(scratch.values())
    assert high - low >= 1000


def test_thread_count_must_not_be_negative() -> None:
    with pytest.raises(UsageError, match="got -1"):
        _ext.set_cpu_threads(-1)


def test_thread_count_from_the_environment_and_from_the_call() -> None:
    script = """
        from fuser_direct import _ext
        counts = [_ext.cpu_threads()]
        _ext.set_cpu_threads(5)
        counts.append(_ext.cpu_threads())
        _ext.set_cpu_threads(0)
        counts.append(_ext.cpu_threads())
        print(counts)
    """
    assert run_script(script, FUSER_DIRECT_NUM_THREADS="3") == "[3, 5, 3]"


def test_runtime_is_not_looked_for_at_import() -> None:
    script = """
        from fuser_direct import _ext
        def maps():
            return any("libgomp" in line for line in open("/proc/self/maps"))
        before = maps()
        _ext.cpu_threads()
        print(before, _ext.cpu_backend() != "own pool" and maps())
    """
    before, after = run_script(script).split()
    assert before == "False"
    assert after in ("True", "False")


# A child has none of its parent's threads, whichever runtime started them.
FORK_SCRIPT = """
    import os
    from tests.cpu.test_executor_run import Chunks
    from fuser_direct import _ext
    _ext.set_cpu_threads(2)
    chunks = Chunks(64, 1)
    if {before}:
        chunks.run()
    child = os.fork()
    if child == 0:
        ok = True
        for _ in range(3):
            chunks.run()
            ok = ok and chunks.items() == list(range(64))
        os._exit(0 if ok else 1)
    _, status = os.waitpid(child, 0)
    chunks.run()
    print(status, chunks.items() == list(range(64)))
"""


@pytest.mark.parametrize("before", [True, False], ids=["threads ran", "first use in child"])
def test_kernels_run_in_a_forked_child(before: bool) -> None:
    assert run_script(FORK_SCRIPT.format(before=before)) == "0 True"


def test_kernels_run_while_the_process_exits() -> None:
    script = """
        import atexit
        from tests.cpu.test_executor_run import Chunks
        chunks = Chunks(64, 1)
        chunks.run()
        def last():
            chunks.run()
            print(chunks.items() == list(range(64)))
        atexit.register(last)
    """
    assert run_script(script) == "True"


# ---- memory ----


def output_of(sizes: list[int]) -> _ext.ExecutorCache:
    def make(args: Sequence[_ext.ArgInfo]) -> _ext.Program:
        program = _ext.Program(1, 0, 1)
        strides = [int(np.prod(sizes[d + 1 :])) for d in range(len(sizes))]
        program.add_output(program.add_buffer(*FLOAT, sizes, strides))
        return program

    return cache(make)[0]


def test_output_that_memory_cannot_hold_is_a_memory_error() -> None:
    executor = output_of([1 << 30, 1 << 28])
    for _ in range(2):
        with pytest.raises(MemoryError):
            executor.execute([arange(1)])


def test_output_beyond_64_bit_addresses_is_refused() -> None:
    with pytest.raises(InputError, match="64-bit"):
        output_of([1 << 31, 1 << 30, 1]).execute([arange(1)])
    with pytest.raises(UsageError, match="negative"):
        _ext.Program(1, 0, 0).add_buffer(*FLOAT, [-1], [1])
    (out,) = output_of([1 << 31, 0, 4]).execute([arange(1)])
    assert out.shape == (1 << 31, 0, 4)


def large_add(count: int) -> _ext.ExecutorCache:
    def make(args: Sequence[_ext.ArgInfo]) -> _ext.Program:
        program = _ext.Program(1, 0, 1)
        out = program.add_buffer(*FLOAT, [2, count // 2], [1, 2])
        program.launch_cpu(elementwise(count, lambda x: x + 1), count, 1 << 40, 0, pointers(0, out))
        program.add_output(out)
        return program

    return cache(make)[0]


@pytest.fixture
def empty_pool() -> Any:
    limit = _ext.cpu_pool_limit()
    _ext.release_cpu_pool()
    yield
    _ext.set_cpu_pool_limit(limit)


@pytest.mark.usefixtures("empty_pool")
def test_memory_of_a_large_output_is_used_again() -> None:
    x = arange(2 << 20)
    executor = large_add(x.size)
    (out,) = executor.execute([x])
    address = out.ctypes.data
    view = out[0, :4]
    del out
    gc.collect()
    assert _ext.cpu_pool_bytes() == 0  # the view still needs it
    (other,) = executor.execute([x])
    assert other.ctypes.data != address
    np.testing.assert_array_equal(view, [1, 3, 5, 7])
    del view
    gc.collect()
    assert _ext.cpu_pool_bytes() == x.nbytes
    (again,) = executor.execute([x])
    assert again.ctypes.data == address
    assert _ext.cpu_pool_bytes() == 0
    np.testing.assert_array_equal(memory(address, x.size), x + 1)


@pytest.mark.usefixtures("empty_pool")
def test_pool_keeps_no_more_than_its_limit() -> None:
    x = arange(2 << 20)
    executor = large_add(x.size)
    executor.execute([x])
    gc.collect()
    assert _ext.cpu_pool_bytes() == x.nbytes
    _ext.set_cpu_pool_limit(x.nbytes - 1)
    assert _ext.cpu_pool_bytes() == 0
    executor.execute([x])
    gc.collect()
    assert _ext.cpu_pool_bytes() == 0
