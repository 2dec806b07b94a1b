"""Meshes, shardings and the process's place in a job; what needs several devices is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fuser_direct import (
    DefinitionError,
    DefinitionTypeError,
    FusionDefinition,
    FusionExecutorCache,
    InputError,
    ParallelType,
    UnsupportedError,
    execute_with_dtensors,
)
from fuser_direct.ir.values import TensorView
from fuser_direct.multidevice import (
    Communicator,
    DeviceMesh,
    MultiDeviceExecutor,
    MultiDeviceExecutorParams,
    Sharding,
    output_shardings,
    shard_tensor,
)

LAUNCHERS = ("OMPI_COMM_WORLD_", "", "SLURM_")


@pytest.fixture(autouse=True)
def fresh_communicator(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test reads the environment anew, and starts without a launcher's variables."""
    monkeypatch.setattr(Communicator, "_instance", None)
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "SIZE", "LOCAL_SIZE"):
        for launcher in LAUNCHERS:
            monkeypatch.delenv(launcher + name, raising=False)
    for name in ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE"):
        monkeypatch.delenv(name, raising=False)


def _as_rank(monkeypatch: pytest.MonkeyPatch, rank: int, size: int) -> None:
    monkeypatch.setenv("RANK", str(rank))
    monkeypatch.setenv("WORLD_SIZE", str(size))
    monkeypatch.setattr(Communicator, "_instance", None)


def test_without_a_launcher_there_is_one_process() -> None:
    one = Communicator.instance()
    assert Communicator.instance() is one
    assert (one.rank(), one.size(), one.local_rank(), one.local_size()) == (0, 1, 0, 1)
    one.barrier()


@pytest.mark.parametrize(
    ("rank", "size"),
    [
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
        ("RANK", "WORLD_SIZE"),
        ("SLURM_PROCID", "SLURM_NTASKS"),
    ],
)
def test_the_place_in_a_job_comes_from_the_launcher(
    monkeypatch: pytest.MonkeyPatch, rank: str, size: str
) -> None:
    monkeypatch.setenv(rank, "2")
    monkeypatch.setenv(size, "4")
    assert (Communicator.instance().rank(), Communicator.instance().size()) == (2, 4)


@pytest.mark.parametrize(("rank", "size"), [("4", "4"), ("x", "4"), ("-1", "2")])
def test_an_impossible_place_is_refused(
    monkeypatch: pytest.MonkeyPatch, rank: str, size: str
) -> None:
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("WORLD_SIZE", size)
    with pytest.raises(InputError, match="Communicator"):
        Communicator.instance()


def test_the_communicator_is_not_constructible() -> None:
    with pytest.raises(DefinitionTypeError, match=r"Communicator\.instance"):
        Communicator()


def test_a_barrier_of_several_processes_needs_a_process_group(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _as_rank(monkeypatch, 0, 2)
    with pytest.raises(UnsupportedError, match="init_process_group"):
        Communicator.instance().barrier()


@pytest.mark.parametrize(
    ("devices", "shape", "text"),
    [
        ([0, 1], (2,), "DeviceMesh{0 1}"),
        (range(3), (3,), "DeviceMesh{0 1 2}"),
        (torch.arange(4).reshape(2, 2), (2, 2), "DeviceMesh{{0 1} {2 3}}"),
        (np.array([[5], [3]]), (2, 1), "DeviceMesh{{5} {3}}"),
    ],
)
def test_meshes_of_sequences_and_tensors(devices: Any, shape: tuple[int, ...], text: str) -> None:
    mesh = DeviceMesh(devices)
    assert mesh.shape == shape
    assert mesh.size == int(np.prod(shape))
    assert repr(mesh) == text
    assert mesh == DeviceMesh(devices)


def test_meshes_that_make_no_sense_are_refused() -> None:
    with pytest.raises(DefinitionError, match="must be unique"):
        DeviceMesh([0, 1, 0])
    with pytest.raises(DefinitionError, match="different lengths"):
        DeviceMesh([[0, 1], [2]])
    with pytest.raises(DefinitionTypeError, match="must be ints"):
        DeviceMesh([0.5])


@pytest.mark.parametrize(("rank", "rows"), [(0, [0, 1]), (1, [2, 3]), (5, [0, 1])])
def test_a_mesh_gives_each_process_its_part(
    monkeypatch: pytest.MonkeyPatch, rank: int, rows: list[int]
) -> None:
    _as_rank(monkeypatch, rank, 8)
    part = DeviceMesh([0, 1]).shard_tensor(torch.arange(4), 0)
    assert part.tolist() == rows
    assert part.is_contiguous()


def test_an_uneven_part_is_refused() -> None:
    with pytest.raises(DefinitionError, match="can't be split evenly over 2"):
        DeviceMesh([0, 1]).shard_tensor(torch.zeros(3), 0)


def _spread(devices: list[int], inner: bool = False) -> tuple[FusionDefinition, TensorView]:
    """relu of a tensor [4, 6] whose columns are spread over a mesh."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True)
        y = fd.ops.relu(x)
        fd.add_output(y)
        mesh = DeviceMesh(devices)
        for tv in (x, y):
            tv.set_device_mesh(mesh)
            tv.split(1, mesh.size, inner_split=inner)
            tv.axis(2 if inner else 1).parallelize(ParallelType.mesh_x)
    return fd, y


def test_a_sharding_names_the_logical_axis() -> None:
    fd, y = _spread([0, 1])
    assert fd.fusion is not None
    (sharding,) = output_shardings(fd.fusion)
    assert isinstance(sharding, Sharding)
    assert sharding.mesh == DeviceMesh([0, 1])
    assert sharding.axis_sharded_on(ParallelType.mesh_x) == 1
    assert sharding.axis_sharded_on(ParallelType.mesh_y) == -1
    assert str(y).endswith(" (DeviceMesh{0 1})")
    assert "ideviceIdx.x" in str(y)


@pytest.mark.parametrize(("inner", "columns"), [(False, [3, 4, 5]), (True, [1, 3, 5])])
def test_shard_tensor_follows_the_loop_axes(
    monkeypatch: pytest.MonkeyPatch, inner: bool, columns: list[int]
) -> None:
    _as_rank(monkeypatch, 1, 2)
    _, y = _spread([0, 1], inner)
    whole = torch.arange(24).reshape(4, 6)
    assert torch.equal(shard_tensor(whole, y), whole[:, columns])


def test_shard_tensor_leaves_a_tensor_without_a_mesh_alone() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1])
    whole = torch.zeros(3)
    assert shard_tensor(whole, x) is whole


def test_several_devices_are_refused_with_what_to_do() -> None:
    fd, _ = _spread([0, 1])
    assert fd.fusion is not None
    with pytest.raises(UnsupportedError, match=r"torch\.distributed"):
        FusionExecutorCache(fd.fusion)
    with pytest.raises(UnsupportedError, match=r"torch\.distributed"):
        MultiDeviceExecutor(fd.fusion, MultiDeviceExecutorParams())
    with pytest.raises(UnsupportedError, match=r"torch\.distributed"):
        fd.manual_execute([np.ones((4, 3), np.float32)])


def test_a_mesh_of_one_device_runs() -> None:
    fd, _ = _spread([0])
    x = np.linspace(-1, 1, 24, dtype=np.float32).reshape(4, 6)
    (out,) = fd.execute([x])
    np.testing.assert_array_equal(out, np.maximum(x, 0))
    (sharding,) = fd.fec.get_output_shardings()
    assert sharding.axis_sharded_on(ParallelType.mesh_x) == 1
    again, _ = _spread([0])
    assert again.fusion is not None
    executor = MultiDeviceExecutor(again.fusion, MultiDeviceExecutorParams())
    np.testing.assert_array_equal(executor.run([x])[0], out)


def test_dtensors_with_differently_named_meshes_are_refused() -> None:
    class Stand:
        def __init__(self, name: str) -> None:
            self.device_mesh = type("Mesh", (), {"mesh_dim_names": (name,)})()

    fd, _ = _spread([0])
    with pytest.raises(AssertionError, match="mesh_dim_names"):
        execute_with_dtensors(fd, [Stand("a"), Stand("b")])


def test_a_mesh_must_be_a_mesh() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1])
    with pytest.raises(DefinitionTypeError, match="must be a DeviceMesh"):
        x.set_device_mesh([0])
