"""Reproduction scripts run as printed, whatever the inputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fuser_direct import DataType, FusionDefinition
from fuser_direct.repro import elements_spanned, scalar_text

TENSORS = {
    "contiguous": torch.zeros(3, 4),
    "strided": torch.zeros(6, 8)[::2, ::2],
    "transposed": torch.zeros(4, 3).t(),
    "expanded": torch.zeros(3, 1).expand(3, 4),
    "rank 0": torch.zeros(()),
    "empty": torch.zeros(0, 4),
    "bool": torch.zeros(4, 3, dtype=torch.bool).t(),
    "int": torch.zeros(4, 3, dtype=torch.int32).t(),
    "half": torch.zeros(3, dtype=torch.float16),
    "complex": torch.zeros(4, 3, dtype=torch.complex64).t(),
}


class Recorder:
    """Stands in for the FusionDefinition of a script: keeps what it was executed on."""

    seen: list[Any]

    def __init__(self) -> None:
        self.fd = FusionDefinition()

    def __enter__(self) -> FusionDefinition:
        return self.fd.__enter__()

    def __exit__(self, *error: Any) -> None:
        self.fd.__exit__(*error)

    def execute(self, inputs: list[Any]) -> None:
        Recorder.seen = inputs


def inputs_of(script: str) -> list[Any]:
    """The inputs that a script makes; its definition is executed too."""
    assert "from fuser_direct import FusionDefinition, DataType\n" in script
    names: dict[str, Any] = {"Recorder": Recorder}
    text = script.replace(
        "with FusionDefinition() as fd:", "recorder = Recorder()\nwith recorder as fd:"
    )
    exec(text.replace("fd.execute(inputs)", "recorder.execute(inputs)"), names)
    return Recorder.seen


@pytest.mark.parametrize("tensor", TENSORS.values(), ids=TENSORS)
def test_torch_inputs_have_the_same_layout(tensor: torch.Tensor) -> None:
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.set(fd.from_pytorch(tensor)))
    (made,) = inputs_of(fd.repro_script_for([tensor]))
    assert made.shape == tensor.shape
    assert made.dtype == tensor.dtype
    assert made.stride() == tensor.stride()


ARRAYS = {
    "plain": np.zeros((3, 4)),
    "transposed": np.zeros((4, 3), np.int32).T,
    "empty": np.zeros((0, 2)),
    "rank 0": np.zeros(()),
    "strided": np.zeros(9, bool)[::3],
    "expanded": np.broadcast_to(np.zeros(3, np.float32), (2, 3)),
}


@pytest.mark.parametrize("array", ARRAYS.values(), ids=ARRAYS)
def test_numpy_inputs_have_the_same_layout(array: Any) -> None:
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.set(fd.from_pytorch(array)))
    (made,) = inputs_of(fd.repro_script_for([array]))
    assert (made.shape, made.dtype) == (array.shape, array.dtype)
    # NumPy gives an empty array one of several strides, which no element ever uses.
    assert made.strides == array.strides or array.size == 0


@pytest.mark.parametrize(
    "value", [1, -2.5, True, float("inf"), float("-inf"), 1e300, 2 - 3j, complex(float("inf"), 0)]
)
def test_scalar_inputs_are_the_same(value: Any) -> None:
    assert eval(scalar_text(value)) == value


def test_nan_is_nan() -> None:
    made = eval(scalar_text(float("nan")))
    assert made != made


def test_text_of_a_script() -> None:
    with FusionDefinition() as fd:
        x, s = fd.define_tensor([-1, -1]), fd.define_scalar(DataType.Double)
        fd.add_output(fd.ops.mul(x, s))
    tail = "with FusionDefinition() as fd:\n    nvfuser_fusion(fd)\n"
    plain = fd.repro_script_for()
    head, _, rest = plain.partition("def nvfuser_fusion")
    assert f"def nvfuser_fusion{rest}" == f"{fd!r}{tail}"
    lines = head.splitlines()
    assert lines[0] == "# CUDA devices:"
    assert lines[-4] == f"# torch version: {torch.__version__}"
    assert lines[-3] == f"# cuda version: {torch.version.cuda}"
    assert lines[-2:] == ["import torch", "from fuser_direct import FusionDefinition, DataType"]
    inputs = [torch.zeros(4, 3).t(), float("inf")]
    assert fd.repro_script_for(inputs) == (
        f"{plain}\ninputs = [\n"
        "    torch.randn(12, dtype=torch.float32, device='cpu').as_strided((3, 4), (1, 3)),\n"
        '    float("inf"),\n'
        "]\nfd.execute(inputs)\n"
    )
    assert (
        "torch.testing.make_tensor((2, 2), dtype=torch.float32, device='cpu'),"
        in fd.repro_script_for([torch.zeros(2, 2), 1.0])
    )


def test_last_script_is_that_of_the_real_inputs() -> None:
    with FusionDefinition() as fd:
        x, y, s = fd.define_tensor([-1, -1]), fd.define_tensor([-1, -1]), fd.define_scalar()
        fd.add_output(fd.ops.mul(fd.ops.add(x, y), s))
    with pytest.raises(
        AssertionError, match=r"fd\.last_repro_script\(\) cannot provide a repro because"
    ):
        fd.last_repro_script()

    class Cache:
        def fusion(self) -> Any:
            return x.fusion

        def execute(self, inputs: Any, **options: Any) -> list[Any]:
            return []

    fd.fec = Cache()  # type: ignore[assignment]
    inputs = [torch.zeros(6, 4)[::2], np.zeros((3, 8), np.float32)[:, ::2], 2.0]
    fd.execute(inputs)
    with pytest.raises(AssertionError, match="was not executed!"):
        fd.last_repro_script()
    fd.execute(inputs, save_repro_inputs=True)
    assert fd.last_repro_script() == fd.repro_script_for(inputs)
    # The inputs' memory is not held.
    assert all(
        kept is not value for kept, value in zip(fd.fake_inputs[:2], inputs[:2], strict=True)
    )


@pytest.mark.parametrize(
    ("sizes", "strides", "count"),
    [([], [], 1), ([3, 4], [4, 1], 12), ([3, 4], [10, 2], 27), ([5], [0], 1), ([0, 4], [4, 1], 0)],
)
def test_memory_spanned(sizes: list[int], strides: list[int], count: int) -> None:
    assert elements_spanned(sizes, strides) == count
