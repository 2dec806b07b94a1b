"""Fusions that once went wrong, as small as they were found; each function takes the device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from fuser_direct import DataType, FusionDefinition
from tests.support import execute_and_check

FLOAT, INT = DataType.Float, DataType.Int


def _numbers(shape: tuple[int, ...], device: str) -> torch.Tensor:
    return (
        torch.arange(torch.Size(shape).numel(), dtype=torch.float32).sin().reshape(shape).to(device)
    )


def row_sums_needed_straight_and_transposed(device: str) -> None:
    """A later reader joined the kernel of the sums to that of their transpose, which then summed
    along a diagonal."""
    with FusionDefinition() as fd:
        x, y = (fd.define_tensor([8, 8], contiguity=True) for _ in range(2))
        centred = fd.ops.sub(x, fd.ops.sum(x, [1], keepdim=True))
        mirrored = fd.ops.add(fd.ops.add(centred, fd.ops.permute(centred, [1, 0])), y)
        for out in (centred, mirrored, fd.ops.mul(centred, y)):
            fd.add_output(out)
    execute_and_check(fd, [_numbers((8, 8), device), _numbers((8, 8), device) + 1])


def piece_of_static_extent_1_makes_a_symbolic_one_broadcast(device: str) -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1])
        joined = fd.ops.cat([fd.ops.neg(fd.ops.permute(x, [1, 0])), fd.ops.reshape(x, [3, 1])], 0)
        fd.add_output(fd.ops.add(joined, fd.ops.full([1, 5], 3.0, FLOAT)))
        fd.add_output(fd.ops.sum(joined, [0]))
    execute_and_check(fd, [_numbers((1, 3), device)])


def tensor_read_inside_and_outside_of_its_kernel(device: str) -> None:
    """The segmenter forgot a reader of a tensor when another reader was merged with its kernel."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([1, 1, 2])
        y = fd.define_tensor([18], contiguity=True)
        place = fd.define_scalar(INT)
        total = fd.ops.squeeze(fd.ops.sum(fd.ops.squeeze(x, [1]), [1]), [0])
        wide = fd.ops.neg(fd.ops.broadcast(total, [True]))
        is_same = fd.ops.eq(wide, y)
        picked = fd.ops.broadcast(fd.ops.select(wide, place, 0), [True])
        fd.add_output(fd.ops.where(is_same, picked, fd.ops.neg(wide)))
    execute_and_check(fd, [_numbers((1, 1, 2), device), _numbers((18,), device), 0])


def library_result_written_into_an_input(device: str) -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([5, 5], contiguity=True)
        negative = fd.ops.neg(x)
        running = fd.ops.cumsum(negative, 0)
        fd.add_output(negative)
        fd.add_output(running, x)
        fd.add_output(running)
    x_value = _numbers((5, 5), device)
    before = x_value.clone()
    first, second = fd.execute([x_value])
    assert second is x_value
    torch.testing.assert_close(first, -before, rtol=0, atol=0)
    torch.testing.assert_close(second, torch.cumsum(-before, 0))


def column_and_its_row_with_a_third_operand(device: str) -> None:
    """Two dims of the result were walked by one axis, so the diagonal alone was stored."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([5, 1])
        row = fd.ops.permute(fd.ops.ge(fd.ops.neg(x), x), [1, 0])
        wide = fd.ops.where(row, x, x)
        fd.add_output(wide)
        fd.add_output(fd.ops.neg(fd.ops.permute(wide, [1, 0])))
    execute_and_check(fd, [_numbers((5, 1), device)])


def normalised_piece_of_a_cat_needed_by_another_kernel(device: str) -> None:
    """The cat, which its reader evaluates at shifted places, was to be stored by the reader."""
    with FusionDefinition() as fd:
        x, y = (fd.define_tensor(shape, contiguity=True) for shape in ([4, 6], [4, 8]))
        start = fd.define_scalar(INT)
        sums = fd.ops.sum(fd.ops.exp(x), [0])
        piece = fd.ops.slice(fd.ops.cat([sums, sums], 0), [start], [8])
        centred = fd.ops.sub(piece, fd.ops.sum(piece, [0], keepdim=True))
        fd.add_output(fd.ops.add(y, fd.ops.broadcast(centred, [True, False])))
    execute_and_check(fd, [_numbers((4, 6), device), _numbers((4, 8), device), 0])


def page_of_a_tensor_beside_its_transpose(device: str) -> None:
    """Tiles that turn a tensor left out the page's place, or the guard, of what they read."""
    for dtype, rows in ((FLOAT, 130), (DataType.BFloat16, 128)):
        with FusionDefinition() as fd:
            x = fd.define_tensor([16, -1, 16], contiguity=True, dtype=dtype)
            page = fd.define_scalar(INT)
            turned = fd.ops.permute(x, [2, 1, 0])
            picked = fd.ops.select(fd.ops.add(x, turned), page, 0)
            fd.add_output(fd.ops.cast(picked, dtype))
            widened = fd.ops.add(x, fd.ops.pad(fd.ops.permute(x, [2, 1, 0]), [1, -1]))
            fd.add_output(fd.ops.cast(widened, dtype))
        values = _numbers((16, rows, 16), device)
        execute_and_check(fd, [values.bfloat16() if rows == 128 else values, 3])


def page_of_which_columns_are_taken(device: str) -> None:
    """The page's place was left out where the columns' strides called for a tile."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([2, 1025, 33], contiguity=True)
        page = fd.define_scalar(INT)
        fd.add_output(fd.ops.neg(fd.ops.slice(fd.ops.select(x, page, 0), [0, 0], [1025, 24])))
    execute_and_check(fd, [_numbers((2, 1025, 33), device), 1])


FOUND: list[Callable[[str], Any]] = [
    column_and_its_row_with_a_third_operand,
    row_sums_needed_straight_and_transposed,
    piece_of_static_extent_1_makes_a_symbolic_one_broadcast,
    tensor_read_inside_and_outside_of_its_kernel,
    library_result_written_into_an_input,
    normalised_piece_of_a_cat_needed_by_another_kernel,
    page_of_a_tensor_beside_its_transpose,
    page_of_which_columns_are_taken,
]
