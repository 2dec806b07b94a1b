"""What the CPU scheduler decides from sizes and strides alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fuser_direct.schedulers import cpu
from fuser_direct.schedulers.contract import CpuDevice, CpuLaunch, Scheduled
from fuser_direct.schedulers.schedule import KEPT_ON_STACK, CpuColumn, CpuRow
from tests.unit.lowering_support import lowered_kernels, plan_of

DEVICE = CpuDevice(2, 512)


def schedule_of(body: Any, x: np.ndarray) -> Scheduled:
    """The schedule of the only kernel of `body`, a function of (definition, tensor)."""

    def builder(fd: Any) -> None:
        fd.add_output(body(fd, fd.from_pytorch(x)))

    ((lowered, _),) = lowered_kernels(plan_of(builder), [x])[1]
    return cpu.schedule(lowered, DEVICE, (True,) * len(lowered.arguments))


def softmax(fd: Any, x: Any) -> Any:
    power = fd.ops.exp(fd.ops.sub(x, fd.ops.max(x, [1], keepdim=True)))
    return fd.ops.div(power, fd.ops.sum(power, [1], keepdim=True))


def row_sum(fd: Any, x: Any) -> Any:
    return fd.ops.sum(x, [1])


def column_sum(fd: Any, x: Any) -> Any:
    return fd.ops.sum(x, [0])


def floats(*shape: int) -> np.ndarray:
    return np.empty(shape, np.float32)


@pytest.mark.parametrize(
    ("x", "is_ahead"),
    [
        (floats(1024, 4096), True),
        (floats(64, 4096), False),
        (floats(1024, 4100)[:, :4096], False),
        (floats(1, 4096), False),
    ],
)
def test_large_dense_inputs_are_asked_for_ahead(x: np.ndarray, is_ahead: bool) -> None:
    made = schedule_of(row_sum, x).schedule
    assert isinstance(made, CpuRow)
    assert made.ahead == (is_ahead, False)


@pytest.mark.parametrize(
    ("columns", "capacity", "scratch"),
    [
        (8192, KEPT_ON_STACK, 0),
        (8193, 16384, 4 * (16384 + 64)),
        (131072, 131072, 4 * (131072 + 64)),
        (1 << 20, KEPT_ON_STACK, 0),
    ],
)
def test_expensive_values_of_long_rows_are_kept_in_scratch_memory(
    columns: int, capacity: int, scratch: int
) -> None:
    made = schedule_of(softmax, floats(20, columns))
    assert isinstance(made.schedule, CpuRow)
    assert isinstance(made.launch, CpuLaunch)
    assert (made.schedule.capacity, made.launch.scratch_bytes) == (capacity, scratch)
    # Nothing is kept where nothing is expensive.
    assert schedule_of(row_sum, floats(20, columns)).schedule.capacity == KEPT_ON_STACK


@pytest.mark.parametrize(
    ("shape", "one_by_one", "block"),
    [
        ((262144, 64), True, 512),
        ((65536, 256), True, 512),
        ((4096, 4096), False, 512),
        ((64, 262144), False, 4096),
        ((64, 65536), False, 2048),
        ((500, 64), False, 512),
    ],
)
def test_rows_and_columns_of_column_reductions(
    shape: tuple[int, int], one_by_one: bool, block: int
) -> None:
    made = schedule_of(column_sum, floats(*shape)).schedule
    assert isinstance(made, CpuColumn)
    assert (made.one_by_one, made.block) == (one_by_one, block)
