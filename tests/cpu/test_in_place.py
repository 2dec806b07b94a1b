"""Outputs written into inputs, when a caller passes one tensor for several inputs."""

from __future__ import annotations

import torch

from fuser_direct import FusionDefinition


def test_same_tensor_twice_is_read_before_it_is_written() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True)
        y = fd.define_tensor([-1, -1], contiguity=True)
        fd.add_output(fd.ops.add(x, fd.ops.permute(y, [1, 0])), x)
    data = torch.randn(300, 300)
    expected = data + data.t()
    fd.execute([data, data])
    torch.testing.assert_close(data, expected, rtol=0, atol=0)


def test_same_tensor_twice_is_read_by_a_later_kernel_before_it_is_written() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True)
        y = fd.define_tensor([-1, -1], contiguity=True)
        doubled = fd.ops.mul(x, 2.0)
        fd.add_output(doubled, x)
        rows = fd.ops.sum(y, dims=[1])
        fd.add_output(fd.ops.sum(fd.ops.mul(y, fd.ops.broadcast(rows, [False, True])), dims=[0]))
    data = torch.randn(40, 50)
    expected = (data * data.sum(1, keepdim=True)).sum(0)
    before = data.clone()
    (out,) = fd.execute([data, data])
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(data, 2 * before, rtol=0, atol=0)


def test_one_input_is_still_written_without_a_copy() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1], contiguity=True)
        y = fd.define_tensor([-1], contiguity=True)
        fd.add_output(fd.ops.add(x, y), x)
    data, other = torch.ones(100), torch.ones(100)
    fd.execute([data, other])
    assert len(fd.fec.kernels()) == 1
    torch.testing.assert_close(data, torch.full((100,), 2.0))
