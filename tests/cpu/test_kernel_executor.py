"""LaunchParams, CompileParams and KernelExecutor: defaults, and what reaches the compiler."""

from __future__ import annotations

import inspect
import sys
import types
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from fuser_direct import _ext
from fuser_direct.enums import DataType, SchedulerType
from fuser_direct.errors import UnsupportedError, UsageError
from tests.cpu.executor_support import add_program

DIMS = ("gdimx", "gdimy", "gdimz", "bdimx", "bdimy", "bdimz")


def test_launch_params_read_one_where_unset() -> None:
    params = _ext.LaunchParams()
    assert [getattr(params, name) for name in DIMS] == [1] * 6
    assert params.unset == DIMS
    assert params.smem == 0
    assert repr(params) == (
        "Launch Parameters: BlockDim.x = -1, BlockDim.y = -1, BlockDim.z = -1, "
        "GridDim.x = -1, GridDim.y = -1, GridDim.z = -1, Smem Size = 0\n"
    )


def test_launch_params_keep_any_number_without_a_check() -> None:
    params = _ext.LaunchParams(1 << 40, 2, 3, 4096, 5, -1)
    assert [getattr(params, name) for name in DIMS] == [1 << 40, 2, 3, 4096, 5, 1]
    params.bdimz = 7
    params.smem = 1 << 33
    assert params.unset == ()
    assert "BlockDim.z = 7, GridDim.x = 1099511627776" in repr(params)
    assert repr(params).endswith("Smem Size = 8589934592\n")


def test_launch_params_compare_by_value() -> None:
    params = _ext.LaunchParams(1, 2, 3, 4, 5, 6)
    assert params == _ext.LaunchParams(1, 2, 3, 4, 5, 6)
    assert hash(params) == hash(_ext.LaunchParams(1, 2, 3, 4, 5, 6))
    assert params != _ext.LaunchParams(1, 2, 3, 4, 5, 7)
    assert _ext.LaunchParams() != _ext.LaunchParams(1, 1, 1, 1, 1, 1)
    assert params is not None
    assert params != "x"


def test_compile_params_defaults_attributes_and_text() -> None:
    params = _ext.CompileParams()
    assert params.index_type is None
    assert params.maxrregcount == 255
    assert params.enable_magic_zero is True
    assert params.enable_ptxas_verbose is False
    assert params.device is None
    assert params.include_paths == []
    assert repr(params).startswith(
        "Compile Parameters: index_type = NotSet, maxrregcount = 255, enable_magic_zero = 1, "
        "enable_ptxas_verbose = 0, "
    )
    params.index_type = DataType.Int32
    params.device = 3
    assert params != _ext.CompileParams()
    assert params == _ext.CompileParams(index_type=DataType.Int32, device=3)
    params.index_type = None
    params.device = None
    assert params == _ext.CompileParams()


def test_compile_params_are_keyword_only() -> None:
    with pytest.raises(TypeError):
        _ext.CompileParams(DataType.Int)  # type: ignore[call-arg]


class FakeManual(types.ModuleType):
    """Stands in for fuser_direct.compiler.manual and notes what it is given."""

    def __init__(self) -> None:
        super().__init__("fuser_direct.compiler.manual")
        self.made: list[tuple[Any, Any, Any]] = []
        self.compiled: list[Any] = []
        self.error: Exception | None = None

    def make_compiler(self, fusion: Any, params: Any, scheduler: Any) -> Any:
        self.made.append((fusion, params, scheduler))
        if self.error is not None:
            raise self.error

        def compiler(args: Sequence[_ext.ArgInfo], device: Any, constraints: Any) -> _ext.Program:
            self.compiled.append((len(args), device, constraints))
            return add_program(args)

        return compiler, []


@pytest.fixture
def manual(monkeypatch: pytest.MonkeyPatch) -> FakeManual:
    module = FakeManual()
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module


X = np.arange(6, dtype=np.float32)


def test_defaults_reach_the_compiler_as_none(manual: FakeManual) -> None:
    executor = _ext.KernelExecutor()
    assert not executor.is_compiled()
    executor.compile("fusion")
    assert executor.is_compiled()
    assert manual.made == [("fusion", None, SchedulerType.none)]
    assert manual.compiled == []
    (out,) = executor.run([X, X])
    np.testing.assert_array_equal(out, X + X)
    assert manual.compiled == [(2, None, None)]


def test_compile_with_args_builds_at_once(manual: FakeManual) -> None:
    executor = _ext.KernelExecutor(1, 2, 3, group_id=4)
    constraints = _ext.LaunchParams(1, 1, 1, 32, 1, 1)
    executor.compile(
        "fusion", [X, X], constraints, _ext.CompileParams(maxrregcount=64), SchedulerType.reduction
    )
    assert manual.made == [("fusion", _ext.CompileParams(maxrregcount=64), SchedulerType.reduction)]
    assert manual.compiled == [(2, None, constraints)]
    executor.run([X, X], constraints)
    assert len(manual.compiled) == 1


def test_other_launch_constraints_compile_again(manual: FakeManual) -> None:
    executor = _ext.KernelExecutor()
    executor.compile("fusion")
    one, two = _ext.LaunchParams(1, 1, 1, 1, 1, 1), _ext.LaunchParams(1, 1, 1, 2, 1, 1)
    for constraints in (None, one, two, one, None):
        executor.run([X, X], launch_constraints=constraints)
    assert [entry[2] for entry in manual.compiled] == [None, one, two]


def test_other_compile_params_make_a_new_compiler(manual: FakeManual) -> None:
    executor = _ext.KernelExecutor()
    executor.compile("fusion")
    executor.run([X, X], compile_params=_ext.CompileParams())
    assert len(manual.made) == 1
    executor.run([X, X], None, _ext.CompileParams(maxrregcount=32))
    executor.run([X, X], None, _ext.CompileParams(maxrregcount=32))
    assert [entry[1] for entry in manual.made] == [None, _ext.CompileParams(maxrregcount=32)]


def test_run_before_compile_says_so() -> None:
    with pytest.raises(UsageError, match=r"call compile\(fusion\) first"):
        _ext.KernelExecutor().run([])


def test_failed_compile_leaves_nothing_to_run(manual: FakeManual) -> None:
    manual.error = UnsupportedError("no such fusion")
    executor = _ext.KernelExecutor()
    with pytest.raises(UnsupportedError, match="no such fusion"):
        executor.compile("fusion")
    assert not executor.is_compiled()


@pytest.mark.parametrize("value", [0, "none", 3.5, object()])
def test_constraints_of_another_type_are_a_type_error(manual: FakeManual, value: Any) -> None:
    executor = _ext.KernelExecutor()
    with pytest.raises(TypeError):
        executor.compile("fusion", launch_constraints=value)
    with pytest.raises(TypeError):
        executor.compile("fusion", compile_params=value)


def test_no_launch_is_dependent_before_a_kernel_is_built(manual: FakeManual) -> None:
    executor = _ext.KernelExecutor()
    executor.compile("fusion")
    assert executor.is_programmatic_dependent_launch_enabled() is False


def test_documented_signature_names_the_defaults() -> None:
    text = inspect.getdoc(_ext.KernelExecutor.compile) or ""
    assert "launch_constraints: fuser_direct._ext.LaunchParams | None = None" in text or (
        "launch_constraints: LaunchParams | None = None" in text
    )


def test_scalar_that_gives_a_size_is_part_of_the_key() -> None:
    from fuser_direct import DataType, FusionDefinition

    with FusionDefinition() as fd:
        rows = fd.define_scalar(dtype=DataType.Int)
        fd.add_output(fd.ops.full([rows, 2], 3.0, DataType.Float))
    executor = _ext.KernelExecutor()
    executor.compile(fd.fusion, compile_params=_ext.CompileParams())
    assert [tuple(executor.run([n])[0].shape) for n in (3, 5)] == [(3, 2), (5, 2)]
