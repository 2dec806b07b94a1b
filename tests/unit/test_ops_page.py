"""docs/ops.md says what the compiler does."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from fuser_direct import ops

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    """tools/ops_page.py, which is no package's module."""
    spec = importlib.util.spec_from_file_location("ops_page", ROOT / "tools" / "ops_page.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Its dataclasses look their module up.
    sys.modules["ops_page"] = module
    spec.loader.exec_module(module)
    return module


def test_page_is_up_to_date(tool: ModuleType) -> None:
    assert tool.PAGE.read_text() == tool.page(), "run: python tools/ops_page.py"


def test_every_op_is_listed(tool: ModuleType) -> None:
    assert [entry.op for entry in tool.coverage()] == sorted(ops.__all__)


def test_ops_that_move_elements_are_kernels(tool: ModuleType) -> None:
    kinds = {entry.op: entry.kind for entry in tool.coverage()}
    moving = ["reshape", "slice", "pad", "cat", "permute", "gather", "take_along_axis", "triu"]
    assert {kinds[op] for op in [*moving, "index_select", "select", "uniform"]} == {"kernel"}
    assert {kinds[op] for op in ("matmul", "argsort", "sdpfa_fwd", "cumsum")} == {"library"}
