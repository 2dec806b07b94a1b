"""CUDA text: it builds for each architecture, and run on the CPU it does what the kernel means."""

from __future__ import annotations

import math
import re
from typing import Any

import hand_kernels as hand
import numpy as np
import pytest
from cuda_cases import BY_COLUMN, BY_ROW, CASES, POINTWISE, Case, row_schedule
from cuda_emulator import check, cubin_builder, launch

from fuser_direct.codegen import cuda, interpret
from fuser_direct.codegen.cuda_body import Body
from fuser_direct.codegen.cuda_row import moving_loads
from fuser_direct.codegen.device_library import blocks
from fuser_direct.enums import DataType as D
from fuser_direct.ir.kernel import Kernel
from fuser_direct.schedulers.schedule import CudaColumn, CudaPointwise, CudaRow, CudaTranspose


def _inputs(case: Case, seed: int = 0) -> list[np.ndarray[Any, Any]]:
    rng = np.random.default_rng(seed)
    arrays = []
    for buffer, strides in zip(case.kernel.buffers, case.strides, strict=True):
        count = 1 + sum(s * (e - 1) for s, e in zip(strides, case.extents, strict=True))
        if buffer.dtype is D.Int32 and case.kernel.name == "embedding":
            arrays.append(np.array([3, 0, 1, 3, 2], np.int32))
            continue
        # Room for the four rows of an embedding's table, too.
        arrays.append(hand.memory(buffer.dtype, count * (4 if strides[0] == 0 else 1), rng))
    return arrays


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_emitted_text_does_what_the_kernel_means(case: Case) -> None:
    arrays = _inputs(case)
    got = check(case, arrays)
    for before, after, buffer in zip(arrays, got, case.kernel.buffers, strict=True):
        assert buffer.is_output or before.tobytes() == after.tobytes()


# --- building ---


@pytest.fixture(scope="module")
def build() -> Any:
    """Builder of cubins: build(text, name, arch)."""
    return cubin_builder()


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_text_builds_without_includes(build: Any, case: Case) -> None:
    text = cuda.emit(case.kernel, case.schedule)
    assert "#include" not in text
    marks = ("evict-last", "evict-first", "online", "hold2+1", "with-edges", "by-vectors")
    every = case in (POINTWISE[0], BY_ROW[0], BY_COLUMN[1]) or any(m in case.name for m in marks)
    archs = ("sm_80", "sm_90a", "sm_100") if every else ("sm_90a",)
    # Clusters, bulk copies and early launches came with sm_90.
    newer = ("griddepcontrol", "cluster")
    for arch in archs[1:] if any(word in text for word in newer) else archs:
        assert build(text, case.kernel.name, arch)[:4] == b"\x7fELF"


def test_equal_kernels_emit_equal_bytes() -> None:
    first, second = (
        cuda.emit(hand.softmax(D.Half), row_schedule(8, 64, 1, 2, 2)) for _ in range(2)
    )
    assert first == second


def test_only_used_device_functions_are_pasted() -> None:
    text = cuda.emit(
        hand.reduction("max", D.Float, ("i", "r"), "d1", "d0"), row_schedule(1, 32, 4, 0, 2)
    )
    assert "fd_maximum" in text
    for unused in ("fd_complex", "fd_bf16", "fd_erf", "fd_minimum", "fd_gather"):
        assert unused not in text


def test_every_device_function_is_defined_above_its_use() -> None:
    known: set[str] = set()
    for block in blocks():
        known |= block.names
        assert block.uses <= known | set(
            re.findall(r"\bfd_\w+", " ".join(block.names))
        ) | _defined_in(block.text), block


def test_no_class_has_two_forms() -> None:
    classes = re.findall(r"^struct (fd_\w+) {", "".join(b.text for b in blocks()), re.MULTILINE)
    assert {"fd_divisor", "fd_half_divisor"} <= set(classes)
    assert len(classes) == len(set(classes))


def _defined_in(text: str) -> set[str]:
    return set(re.findall(r"\bfd_\w+", text)) & set(
        re.findall(r"(?:struct|\w[\w>*&]*) (fd_\w+)\(", text)
    )


def test_dynamic_shared_memory_is_asked_for_above_what_a_kernel_may_declare() -> None:
    case = next(c for c in CASES if c.name == "column-sum-in-dynamic-shared-memory")
    assert cuda.shared_bytes(case.kernel, case.schedule) == 2 * 32 * 32 * 4 * 8
    assert "extern __shared__" in cuda.emit(case.kernel, case.schedule)
    small = next(c for c in CASES if c.name == "column-sum")
    assert cuda.shared_bytes(small.kernel, small.schedule) == 0


def test_later_passes_over_many_slots_are_not_written_out_and_the_first_is() -> None:
    def passes(shared: int) -> list[str]:
        schedule = row_schedule(8, 64, 1, 1, 2, unroll=1, shared=shared)
        text = cuda.emit(hand.softmax(D.BFloat16), schedule)
        return text[text.index("// stage 0") :].split("// stage 1")

    first, later = passes(9)
    # The number of copies still to wait for must be known when the kernel is compiled.
    assert "#pragma unroll\n  for (int u = 0; u < 9; ++u)" in first
    assert "#pragma unroll 2\n  for (int u = 0; u < 9; ++u)" in later
    assert "#pragma unroll\n  for (int u = 0; u < 1; ++u)" in later, "registers have no index"
    assert "#pragma unroll\n  for (int u = 0; u < 8; ++u)" in passes(8)[1]


def test_block_extents_follow_the_schedule() -> None:
    assert cuda.threads_of(row_schedule(1, 32, 4, 0, 2)) == (32, 4)
    assert cuda.threads_of(CudaColumn(1, 16, 8, 1, (False,))) == (16, 8)
    assert cuda.threads_of(CudaPointwise(1, 1, 128, (False,))) == (128, 1)


# --- meaning that is easy to lose ---


def test_loads_for_later_stages_are_issued_before_the_first_reduction() -> None:
    norm = hand.rmsnorm(D.BFloat16, 1024)
    text = cuda.emit(norm, row_schedule(8, 64, 1, 2, 3, 1, loads_first=True))
    before, after = text.split("fd_issue_loads();\n", 1)
    assert all(re.search(rf"\by{n}\[u\] = fd_load", before) for n in _read_once(norm))
    assert "fd_load" not in after
    assert "fd_reduce_lanes<" in after
    assert "fd_issue_loads" not in cuda.emit(norm, row_schedule(8, 64, 1, 2, 3, 1))
    alone = row_schedule(8, 64, 1, 2, 2, 1, loads_first=True)
    assert "fd_issue_loads" not in cuda.emit(hand.softmax(D.Half), alone)


def _read_once(kernel: Kernel) -> list[int]:
    """Loads that move along the row and that one stage uses."""
    loads = [n for each in moving_loads(Body(kernel, 8, (True,) * 3)) for n in each]
    once = [n for n in loads if loads.count(n) == 1]
    assert once
    return once


@pytest.mark.parametrize(
    "case",
    [case for case in CASES if isinstance(case.schedule, CudaRow | CudaTranspose)],
    ids=lambda c: c.name,
)
def test_rows_and_tiles_find_their_place_without_dividing(case: Case) -> None:
    """By numbers of the call, that is: a division by a constant is a shift or a product."""
    text = cuda.emit(case.kernel, case.schedule).split('extern "C"')[1]
    places = [line for line in text.split("\n") if re.search(r"const (u?index_t) \w+ =", line)]
    assert places
    assert not [line for line in places if re.search(r"[/%] (?!\d)", line)]


def _reduce_row(op: str, dtype: D, values: np.ndarray[Any, Any], schedule: CudaRow) -> Any:
    kernel = hand.reduction(op, dtype, ("i", "r"), "d1", "d0")
    arrays = [interpret.to_storage(values, dtype), np.zeros(1, interpret.storage_dtype(dtype))]
    count = len(values)
    launch(kernel, schedule, 1, arrays, (), (1, count), ((count, 1), (1, 0)))
    return interpret.from_storage(arrays[1], dtype)[0]


@pytest.mark.parametrize("dtype", [D.Float, D.Double, D.BFloat16], ids=lambda d: d.name)
@pytest.mark.parametrize("op", ["max", "min"])
def test_nan_wins_wherever_it_stands(op: str, dtype: D) -> None:
    schedule = row_schedule(1, 8, 1, 0, 2)
    for place in range(33):
        values = np.linspace(-4, 4, 33)
        values[place] = np.nan
        assert math.isnan(_reduce_row(op, dtype, values, schedule))


@pytest.mark.parametrize("dtype", [D.Float, D.Double, D.Half], ids=lambda d: d.name)
@pytest.mark.parametrize(("op", "sign"), [("max", 1.0), ("min", -1.0)])
def test_extremes_of_zeros_keep_the_sign_rule(op: str, sign: float, dtype: D) -> None:
    for place in range(5):
        values = np.full(5, -sign * 0.0)
        values[place] = sign * 0.0
        result = _reduce_row(op, dtype, values, row_schedule(1, 4, 1, 0, 2))
        assert result == 0
        assert math.copysign(1.0, result) == sign


def test_half_sums_accumulate_in_float() -> None:
    ones = np.ones(70000)
    assert _reduce_row("sum", D.BFloat16, ones, row_schedule(8, 128, 1, 0, 2)) == 70144
    assert _reduce_row("sum", D.Half, ones[:20000], row_schedule(8, 128, 1, 0, 2)) == 20000


def test_bool_reductions() -> None:
    some = np.array([False, True, False])
    schedule = row_schedule(1, 2, 1, 0, 2)
    assert _reduce_row("max", D.Bool, some, schedule)
    assert not _reduce_row("min", D.Bool, some, schedule)
    assert not _reduce_row("min", D.Bool, np.array([True, False, True]), schedule)
    assert _reduce_row("min", D.Bool, np.array([True, True, True]), schedule)


def _round_trip(source: D, through: D) -> Kernel:
    """x -> cast to a half type -> cast back."""
    b = hand.Builder(("i",))
    x, y = b.buffer(source, "1"), b.buffer(source, "1", is_output=True)
    back = b.cast(b.cast(b.node("load", source, attr=x), through), source)
    return b.kernel("round_trip", [hand.stage(range(back + 1), stores=[(y, back)])])


@pytest.mark.parametrize("through", [D.Half, D.BFloat16], ids=lambda d: d.name)
def test_a_written_cast_to_half_is_done(through: D) -> None:
    values = np.array([1.0009765625 + 2**-13, 1 / 3, 70000.0, -1e-7, np.inf], np.float32)
    arrays = [values, np.zeros_like(values)]
    launch(
        _round_trip(D.Float, through),
        CudaPointwise(1, 1, 32, (True, True)),
        1,
        arrays,
        (),
        (5,),
        ((1,), (1,)),
    )
    want = interpret.from_storage(interpret.to_storage(values.astype(np.float64), through), through)
    np.testing.assert_array_equal(arrays[1], want.astype(np.float32))
    assert np.any(arrays[1] != values)


def test_output_may_share_memory_with_an_input_at_the_same_element() -> None:
    kernel = hand.softmax(D.Float)
    rng = np.random.default_rng(3)
    shared = rng.standard_normal((3, 100)).astype(np.float32)
    want = np.exp(shared - shared.max(1, keepdims=True))
    want /= want.sum(1, keepdims=True)
    memory = shared.reshape(-1)
    launch(
        kernel,
        row_schedule(4, 32, 1, 1, 2),
        3,
        [memory, memory],
        (),
        (3, 100),
        ((100, 1), (100, 1)),
    )
    np.testing.assert_allclose(memory.reshape(3, 100), want, rtol=1e-6)


def test_index_nodes_count_along_every_axis() -> None:
    b = hand.Builder(("i", "i"))
    y, z = b.buffer(D.Int, "d1", is_output=True), b.buffer(D.Int, "d1", is_output=True)
    first, second = b.node("index", D.Int, attr=0), b.node("index", D.Int, attr=1)
    kernel = b.kernel("indices", [hand.stage([first, second], stores=[(y, first), (z, second)])])
    case = Case(
        "indices", kernel, CudaPointwise(4, 2, 32, (True, True)), 1, (3, 40), ((40, 1), (40, 1))
    )
    arrays = check(case, [np.zeros(120, np.int64) for _ in range(2)])
    np.testing.assert_array_equal(arrays[0].reshape(3, 40), np.indices((3, 40))[0])
    np.testing.assert_array_equal(arrays[1].reshape(3, 40), np.indices((3, 40))[1])


def test_kernel_without_axes_treats_one_element() -> None:
    b = hand.Builder(())
    x, y = b.buffer(D.Half, ""), b.buffer(D.Half, "", is_output=True)
    out = b.cast(b.node("exp", D.Float, b.load(x)), D.Half)
    kernel = b.kernel("scalar", [hand.stage(range(out + 1), stores=[(y, out)])])
    arrays = [np.array([1.5], np.float16), np.zeros(1, np.float16)]
    launch(kernel, CudaPointwise(1, 1, 32, (True, True)), 1, arrays, (), (), ((), ()))
    assert arrays[1][0] == np.float16(np.exp(1.5))


@pytest.mark.parametrize(
    ("value", "dtype", "want"),
    [
        (math.inf, D.Float, "__int_as_float(0x7f800000)"),
        (-math.inf, D.Double, "(-__longlong_as_double(0x7ff0000000000000ll))"),
        (-(2**63), D.Int, "(-9223372036854775807ll - 1)"),
        (-3, D.Int32, "(-3)"),
        (1, D.Float, "1.0f"),
        (0.1, D.Float, "0.1f"),
        (1e300, D.Float, "__int_as_float(0x7f800000)"),
        (10**400, D.Double, "__longlong_as_double(0x7ff0000000000000ll)"),
        (1 + 2**-9, D.BFloat16, "1.0f"),
        (2j, D.ComplexFloat, "fd_c64(0.0f, 2.0f)"),
        (-0.0, D.Float, "(-0.0f)"),
    ],
)
def test_constants_are_valid_text_of_the_same_value(value: Any, dtype: D, want: str) -> None:
    from fuser_direct.codegen.cuda_expr import literal

    text = literal(value, dtype)
    assert text == want or (text == "(-0f)" and want == "(-0.0f)")
