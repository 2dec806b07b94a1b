"""The enumerations behave as pybind11's: members by name, and entries with their docstrings."""

from __future__ import annotations

import pytest

import fuser_direct
from fuser_direct.enums import DataType, NativeEnum


@pytest.mark.parametrize("enum", [DataType, fuser_direct.MmaMacroArch, fuser_direct.ParallelType])
def test_entries_name_every_member_of_the_class_itself(enum: type[NativeEnum]) -> None:
    entries = getattr(enum, "__entries")
    assert entries == {name: (member, None) for name, member in enum.__members__.items()}
    assert entries
    assert all(type(member) is enum for member, _ in entries.values())
