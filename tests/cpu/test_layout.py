"""Memory order of outputs of ops that resize a dimension."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from fuser_direct import FusionDefinition

OPS: dict[str, tuple[Callable[..., Any], Callable[..., torch.Tensor]]] = {
    "cat last": (lambda fd, x: fd.ops.cat([x, x], 1), lambda x: torch.cat([x, x], 1)),
    "cat first": (lambda fd, x: fd.ops.cat([x, x], 0), lambda x: torch.cat([x, x], 0)),
    "cat and relu": (
        lambda fd, x: fd.ops.relu(fd.ops.cat([x, x], 1)),
        lambda x: torch.cat([x, x], 1).relu(),
    ),
    "pad": (
        lambda fd, x: fd.ops.pad(x, [1, 1], 0.0),
        lambda x: torch.nn.functional.pad(x, (1, 1)),
    ),
}


@pytest.mark.parametrize("name", OPS)
def test_resized_rows_stay_row_major(name: str) -> None:
    define, eager = OPS[name]
    x = torch.randn(8, 6)
    with FusionDefinition() as fd:
        fd.add_output(define(fd, fd.from_pytorch(x)))
    (out,) = fd.execute([x])
    expected = eager(x)
    torch.testing.assert_close(out, expected)
    assert out.stride() == expected.stride()


def test_concatenated_channels_last_stay_channels_last() -> None:
    x = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    with FusionDefinition() as fd:
        t = fd.from_pytorch(x)
        fd.add_output(fd.ops.cat([t, t], 1))
    (out,) = fd.execute([x])
    torch.testing.assert_close(out, torch.cat([x, x], 1))
    assert out.is_contiguous(memory_format=torch.channels_last)
