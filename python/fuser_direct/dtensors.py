"""Running a definition on PyTorch's DTensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fuser_direct.definition import FusionDefinition
from fuser_direct.enums import ParallelType
from fuser_direct.errors import UsageError
from fuser_direct.multidevice import Sharding, refuse_spread


def execute_with_dtensors(fd: FusionDefinition, in_dtensors: Sequence[Any]) -> list[Any]:
    """Run `fd` on the local parts of DTensors and wrap the outputs as DTensors.

    All inputs must name the dims of their meshes alike (UsageError, an AssertionError). An output
    is a shard along the axis that is bound to `ParallelType.mesh_x`, else a copy. Raises
    UnsupportedError for a mesh of several devices.
    """
    names = {tuple(dtensor.device_mesh.mesh_dim_names or ()) for dtensor in in_dtensors}
    if len(names) > 1:
        raise UsageError(
            "execute_with_dtensors: all inputs must have the same mesh_dim_names, got "
            f"{sorted(names)}"
        )
    fusion = fd.fusion
    if fusion is not None:
        refuse_spread(fusion, "execute_with_dtensors")
    outputs = fd.execute([dtensor.to_local() for dtensor in in_dtensors])
    shardings = fd.fec.get_output_shardings()
    if len(shardings) != len(outputs):
        raise UsageError(
            f"execute_with_dtensors: {len(outputs)} outputs, but {len(shardings)} shardings; give "
            "the fusion's tensors a mesh with set_device_mesh"
        )
    dim_names = next(iter(names), ())
    return [
        _wrapped(output, sharding, dim_names)
        for output, sharding in zip(outputs, shardings, strict=True)
    ]


def _wrapped(output: Any, sharding: Sharding, dim_names: tuple[str, ...]) -> Any:
    """`output` as a DTensor on the devices of its sharding."""
    import torch
    from torch.distributed.tensor import DTensor, Replicate, Shard

    mesh = torch.distributed.init_device_mesh(
        output.device.type, sharding.mesh.shape, mesh_dim_names=dim_names or None
    )
    axis = sharding.axis_sharded_on(ParallelType.mesh_x)
    placement = Replicate() if axis == -1 else Shard(axis)
    return DTensor.from_local(output, mesh, [placement])
