"""fp4: the framework counts pairs along the fastest dim, a fusion counts elements."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from fuser_direct import DataType, FusionDefinition, InputError, UnsupportedError
from fuser_direct.ops.eager_pointwise import pack_fp4, unpack_fp4

FP4 = DataType.Float4_e2m1fn
VALUES = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])


def _values(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    signs = torch.randint(0, 2, shape, generator=generator) * 2 - 1
    return VALUES[torch.randint(0, 8, shape, generator=generator)] * signs


def _run(math: Callable[..., Any], *inputs: torch.Tensor) -> list[torch.Tensor]:
    with FusionDefinition() as fd:
        fd.add_output(math(fd, *(fd.from_pytorch(x) for x in inputs)))
    outputs: list[torch.Tensor] = fd.execute(list(inputs))
    return outputs


MOVES = {
    "set": (lambda fd, a: fd.ops.set(a), lambda x: x),
    "slice": (lambda fd, a: fd.ops.slice(a, [1, 2], [5, 12]), lambda x: x[1:5, 2:12]),
    "reshape": (lambda fd, a: fd.ops.reshape(a, [3, 2, 16]), lambda x: x.reshape(3, 2, 16)),
    "cat": (lambda fd, a: fd.ops.cat([a, a], 1), lambda x: torch.cat([x, x], 1)),
    "pad": (lambda fd, a: fd.ops.pad(a, [1, 3]), lambda x: torch.nn.functional.pad(x, (1, 3))),
}


@pytest.mark.parametrize("name", MOVES)
def test_moved_elements_are_those_of_the_unpacked_tensor(name: str) -> None:
    math, eager = MOVES[name]
    x = _values(6, 16)
    (packed,) = _run(math, pack_fp4(x))
    want = eager(x)
    assert packed.dtype is torch.float4_e2m1fn_x2
    assert packed.shape == (*want.shape[:-1], want.shape[-1] // 2)
    torch.testing.assert_close(unpack_fp4(packed.contiguous()), want, rtol=0, atol=0)


def test_casts_both_ways_have_the_extents_of_elements() -> None:
    x = _values(5, 8)
    (wide,) = _run(lambda fd, a: fd.ops.cast(a, DataType.Float), pack_fp4(x))
    torch.testing.assert_close(wide, x, rtol=0, atol=0)
    (packed,) = _run(lambda fd, a: fd.ops.cast(fd.ops.mul(a, 0.5), FP4), x * 2)
    assert packed.shape == (5, 4)
    torch.testing.assert_close(unpack_fp4(packed), x, rtol=0, atol=0)


def test_pairs_along_another_dim_than_the_last() -> None:
    x = _values(5, 8)
    turned = pack_fp4(x).t()
    (wide,) = _run(lambda fd, a: fd.ops.cast(a, DataType.Float), turned)
    torch.testing.assert_close(wide, x.t(), rtol=0, atol=0)
    (again,) = _run(lambda fd, a: fd.ops.cast(fd.ops.permute(a, [1, 0]), DataType.Float), turned)
    torch.testing.assert_close(again, x, rtol=0, atol=0)
    (ordered,) = _run(lambda fd, a: fd.ops.stride_order(a, [0, 1]), pack_fp4(_values(4, 6)))
    assert (ordered.shape, ordered.stride()) == ((2, 6), (1, 2))
    torch.testing.assert_close(unpack_fp4(ordered, 0), _values(4, 6), rtol=0, atol=0)


def test_what_does_not_fill_bytes_is_refused_by_name() -> None:
    packed = pack_fp4(_values(6, 16))
    with pytest.raises(InputError, match="don't fill whole bytes"):
        _run(lambda fd, a: fd.ops.slice(a, [0, 1], [6, 7]), packed)
    with pytest.raises(InputError, match="don't fill whole bytes"):
        _run(lambda fd, a: fd.ops.cast(a, FP4), _values(4, 5))


def test_an_input_of_another_layout_is_refused_by_name() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], False, DataType.Float4_e2m1fn_x2)
        fd.add_output(fd.ops.cast(x, DataType.Float))
    packed = pack_fp4(_values(4, 6))
    (wide,) = fd.execute([packed])
    assert wide.shape == (4, 6)
    with pytest.raises(InputError, match="input 0.*pairs along dimension 1"):
        fd.execute([packed.t()])
    with pytest.raises(InputError, match="rank"):
        fd.execute([packed[0]])


@pytest.mark.parametrize("registered", [False, True])
def test_numpy_has_no_such_type(registered: bool) -> None:
    if registered:
        # It gives NumPy a type of this name, of one byte an element.
        pytest.importorskip("ml_dtypes")
    with pytest.raises(UnsupportedError, match="NumPy has no type"):
        _run(lambda fd, a: fd.ops.cast(a, FP4), VALUES.numpy())


def test_a_copy_into_another_layout_is_refused_by_name() -> None:
    def math(fd: Any, a: Any) -> Any:
        return fd.ops.reshape(fd.ops.permute(a, [1, 0]), [96])

    with pytest.raises(UnsupportedError, match="no kernel moves elements of this type"):
        _run(math, pack_fp4(_values(6, 16)))
