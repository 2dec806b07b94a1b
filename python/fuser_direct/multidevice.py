"""The multi-device classes of the peer's API, as far as one process that drives one device goes.

Meshes, shardings and their arithmetic are whole. Running a fusion whose tensors lie on a mesh of
several devices needs communication between processes, which this version doesn't have: it is
refused (`MultiDeviceExecutor`, `execute_with_dtensors`) unless every tensor is on a mesh of one.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar

from fuser_direct.enums import CommunicatorBackend, ParallelType
from fuser_direct.errors import DefinitionError, DefinitionTypeError, InputError, UnsupportedError
from fuser_direct.ir.fusion import Fusion
from fuser_direct.ir.values import IterDomain, Merge, Split, TensorView
from fuser_direct.records import dataclass

__all__ = [
    "Communicator",
    "DeviceMesh",
    "MultiDeviceExecutor",
    "MultiDeviceExecutorParams",
    "Sharding",
    "output_shardings",
    "shard_tensor",
]

_MESH_TYPES = (ParallelType.mesh_x, ParallelType.mesh_y, ParallelType.mesh_z)


# --- the job ---

_RANK = ("OMPI_COMM_WORLD_RANK", "RANK", "SLURM_PROCID")
_SIZE = ("OMPI_COMM_WORLD_SIZE", "WORLD_SIZE", "SLURM_NTASKS")
_LOCAL_RANK = ("OMPI_COMM_WORLD_LOCAL_RANK", "LOCAL_RANK", "SLURM_LOCALID")
_LOCAL_SIZE = ("OMPI_COMM_WORLD_LOCAL_SIZE", "LOCAL_WORLD_SIZE", "SLURM_NTASKS_PER_NODE")


class Communicator:
    """This process's place in a job, from the launcher's environment variables; `instance()` gives
    it.
    """

    _instance: ClassVar[Communicator | None] = None

    def __init__(self) -> None:
        raise DefinitionTypeError(
            "Communicator: No constructor defined! Call Communicator.instance()"
        )

    @classmethod
    def instance(cls) -> Communicator:
        """The only object of this class; it reads the environment when it is made."""
        if cls._instance is None:
            made = object.__new__(cls)
            made._read_environment()
            cls._instance = made
        return cls._instance

    def _read_environment(self) -> None:
        self._size = _from_environment(_SIZE, 1)
        self._rank = _from_environment(_RANK, 0)
        self._local_size = _from_environment(_LOCAL_SIZE, self._size)
        self._local_rank = _from_environment(_LOCAL_RANK, self._rank)
        if not 0 <= self._rank < self._size or not 0 <= self._local_rank < self._local_size:
            raise InputError(
                f"Communicator: the environment says rank {self._rank} of {self._size} and local "
                f"rank {self._local_rank} of {self._local_size}; a rank must be below its size"
            )

    def size(self) -> int:
        """Processes of the job."""
        return self._size

    def rank(self) -> int:
        """This process's number among them."""
        return self._rank

    def local_size(self) -> int:
        """Processes of the job on this machine."""
        return self._local_size

    def local_rank(self) -> int:
        """This process's number among those."""
        return self._local_rank

    def barrier(self) -> None:
        """Wait for all processes of the job: for one, nothing; for more, by torch.distributed,
        which must have been initialised (UnsupportedError).
        """
        if self._size == 1:
            return
        import torch.distributed as dist

        if not (dist.is_available() and dist.is_initialized()):
            raise UnsupportedError(
                f"Communicator.barrier: this job has {self._size} processes, and they meet through "
                "torch.distributed; call torch.distributed.init_process_group first"
            )
        dist.barrier()


def _from_environment(names: Sequence[str], default: int) -> int:
    for name in names:
        text = os.environ.get(name, "")
        if text:
            if not text.isdigit():
                raise InputError(
                    f"Communicator: {name} must be a number of 0 or more, got {text!r}"
                )
            return int(text)
    return default


# --- meshes ---


class DeviceMesh:
    """Devices in a grid. devices: ints, or a tensor or array of ints of any rank. Duplicates are
    refused.
    """

    def __init__(self, devices: Any) -> None:
        nested = devices.tolist() if hasattr(devices, "tolist") else list(devices)
        self._shape, self._devices = _flattened(nested)
        if len(set(self._devices)) < len(self._devices):
            raise DefinitionError(f"DeviceMesh: device IDs must be unique, got {nested}")
        self._nested = nested

    @property
    def size(self) -> int:
        """Number of devices."""
        return len(self._devices)

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents of the grid."""
        return self._shape

    @property
    def devices(self) -> tuple[int, ...]:
        """The devices, row-major."""
        return self._devices

    def index_of(self, device: int) -> tuple[int, ...] | None:
        """Position of a device in the grid, or None if it isn't in it."""
        if device not in self._devices:
            return None
        flat = self._devices.index(device)
        position = []
        for extent in reversed(self._shape):
            position.append(flat % extent)
            flat //= extent
        return tuple(reversed(position))

    def shard_tensor(self, tensor: Any, axis: int) -> Any:
        """This process's contiguous part of `tensor` along `axis`, which the mesh's size must
        divide; part 0 if this process isn't in the mesh.
        """
        flat = 0
        rank = Communicator.instance().rank()
        if rank in self._devices:
            flat = self._devices.index(rank)
        return _part(tensor, axis, self.size, flat, is_inner=False)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, DeviceMesh):
            return NotImplemented
        return (self._shape, self._devices) == (other._shape, other._devices)

    def __hash__(self) -> int:
        return hash((self._shape, self._devices))

    def __repr__(self) -> str:
        return f"DeviceMesh{_braces(self._nested)}"


def _flattened(nested: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(shape, leaves) of nested lists of ints."""
    if isinstance(nested, int) and not isinstance(nested, bool):
        return (), (nested,)
    if not isinstance(nested, (list, tuple)):
        raise DefinitionTypeError(f"DeviceMesh: device IDs must be ints, got {nested!r}")
    parts = [_flattened(item) for item in nested]
    if len({shape for shape, _ in parts}) > 1:
        raise DefinitionError(f"DeviceMesh: rows of different lengths in {nested}")
    inner = parts[0][0] if parts else ()
    return (len(parts), *inner), tuple(leaf for _, leaves in parts for leaf in leaves)


def _braces(nested: Any) -> str:
    if isinstance(nested, (list, tuple)):
        return "{" + " ".join(_braces(item) for item in nested) + "}"
    return str(nested)


def _part(tensor: Any, axis: int, count: int, index: int, is_inner: bool) -> Any:
    """Part `index` of `count` along `axis`: neighbouring elements, or every count-th (is_inner)."""
    rank = len(tensor.shape)
    if not -rank <= axis < rank:
        raise DefinitionError(f"shard_tensor: axis {axis} is out of range for a rank of {rank}")
    axis %= rank
    extent = int(tensor.shape[axis])
    if extent % count:
        raise DefinitionError(
            f"shard_tensor: axis {axis} of extent {extent} can't be split evenly over {count} "
            "devices"
        )
    step = extent // count
    taken = slice(index, extent, count) if is_inner else slice(index * step, (index + 1) * step)
    part = tensor[(slice(None),) * axis + (taken,)]
    if hasattr(part, "contiguous"):
        return part.contiguous()
    return part.copy()


# --- shardings ---


@dataclass(frozen=True, slots=True)
class _Shard:
    """A logical axis that is spread over a mesh axis; is_inner: neighbouring elements are on
    different devices.
    """

    parallel: ParallelType
    axis: int
    is_inner: bool


class Sharding:
    """How a tensor is spread over a mesh."""

    def __init__(self, mesh: DeviceMesh, axes: dict[ParallelType, int]) -> None:
        self._mesh = mesh
        self._axes = axes

    @property
    def mesh(self) -> DeviceMesh:
        """The devices."""
        return self._mesh

    def axis_sharded_on(self, parallel_type: ParallelType) -> int:
        """The logical axis that is spread over this axis of the mesh, or -1."""
        return self._axes.get(parallel_type, -1)

    def __repr__(self) -> str:
        return f"Sharding({self._mesh}, { ({str(k): v for k, v in self._axes.items()}) })"


def _shards(tv: TensorView) -> Iterator[_Shard]:
    """The logical axes of `tv` that its loop axes spread over devices."""
    for axis in tv.get_loop_domain():
        if axis.parallel not in _MESH_TYPES or axis.is_reduction():
            continue
        source, is_inner = axis, False
        expr = axis.definition()
        if isinstance(expr, Split):
            whole = expr.ins[0]
            assert isinstance(whole, IterDomain)
            source, is_inner = whole, axis is expr.inner()
        if isinstance(expr, Merge) or isinstance(source.definition(), (Split, Merge)):
            raise UnsupportedError(
                f"sharding: {axis} of {tv.label} is bound to {axis.parallel}, but it is more than "
                "one split away from a logical axis; split a logical axis by the mesh's size"
            )
        place = next((n for n, known in enumerate(tv.logical) if known is source), None)
        if place is not None:
            yield _Shard(axis.parallel, place, is_inner)


def sharding_of(tv: TensorView) -> Sharding | None:
    """How `tv` is spread over its mesh; None if it has none."""
    mesh = tv.loops.mesh
    if mesh is None:
        return None
    return Sharding(mesh, {shard.parallel: shard.axis for shard in _shards(tv)})


def output_shardings(fusion: Fusion) -> list[Sharding]:
    """How each returned output is spread; [] if no tensor of the fusion has a mesh. An output
    without a mesh counts as a copy on every device of the first mesh.
    """
    found = [tv.loops.mesh for tv in fusion.vals() if isinstance(tv, TensorView)]
    meshes = [mesh for mesh in found if mesh is not None]
    if not meshes:
        return []
    return [sharding_of(tv) or Sharding(meshes[0], {}) for tv in fusion.returned()]


def shard_tensor(tensor: Any, tv: TensorView) -> Any:
    """This process's part of `tensor`, a value of `tv`; the tensor itself if `tv` isn't spread."""
    mesh = tv.loops.mesh
    if mesh is None:
        return tensor
    position = mesh.index_of(Communicator.instance().rank())
    for shard in _shards(tv):
        # mesh_x is the innermost axis of the grid.
        place = len(mesh.shape) - 1 - _MESH_TYPES.index(shard.parallel)
        if place < 0:
            raise DefinitionError(
                f"shard_tensor: {tv.label} is bound to {shard.parallel}, but {mesh} has "
                f"{len(mesh.shape)} axes"
            )
        index = 0 if position is None else position[place]
        tensor = _part(tensor, shard.axis, mesh.shape[place], index, shard.is_inner)
    return tensor


def refuse_spread(fusion: Fusion, speaker: str) -> None:
    """Raise UnsupportedError if a tensor of the fusion is spread over several devices."""
    for tv in fusion.vals():
        if isinstance(tv, TensorView) and tv.has_mesh() and tv.loops.mesh.size > 1:
            raise UnsupportedError(
                f"{speaker}: {tv.label} lies on {tv.loops.mesh}: a fusion over several devices "
                "needs communication between processes, which this version doesn't have; run one "
                "fusion a device on local tensors, and communicate by torch.distributed between "
                "them"
            )


# --- execution ---


@dataclass
class MultiDeviceExecutorParams:
    """How a multi-device program is to run; with one device, none of it makes a difference."""

    use_allocation_cache: bool = False
    number_of_streams: int = 4
    backend_type: CommunicatorBackend = CommunicatorBackend.nccl
    offset_stream_indexing_by_rank: bool = False
    inter_stream_synchronization: bool = False


class MultiDeviceExecutor:
    """Runs a fusion whose tensors all are on this process's device. Raises UnsupportedError for
    others.
    """

    def __init__(self, fusion: Fusion, params: MultiDeviceExecutorParams | None = None) -> None:
        from fuser_direct.executor import FusionExecutorCache

        refuse_spread(fusion, "MultiDeviceExecutor")
        self.params = params or MultiDeviceExecutorParams()
        self._executor = FusionExecutorCache(fusion)

    def run(self, args: Iterable[Any]) -> list[Any]:
        """The fusion's outputs for these inputs."""
        return list(self._executor.execute(list(args)))

    def __str__(self) -> str:
        return f"MultiDeviceExecutor of\n{self._executor.fusion()}"

    __repr__ = __str__
