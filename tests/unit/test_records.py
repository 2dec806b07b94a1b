"""`records.dataclass` against the standard library's: the same behaviour, class by class."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from fuser_direct import records


def classes(dataclass: Callable[..., Any]) -> tuple[type, type, type]:
    @dataclass(frozen=True, slots=True)
    class Frozen:
        a: int
        b: tuple[int, ...] = (1, 2)
        c: list[int] = dataclasses.field(default_factory=list)

    @dataclass
    class Plain:
        a: int
        b: list[int] = dataclasses.field(default_factory=list)

    @dataclass(frozen=True, slots=True)
    class Checked:
        a: int

        def __post_init__(self) -> None:
            object.__setattr__(self, "a", self.a * 2)

    return Frozen, Plain, Checked


OURS, STANDARD = classes(records.dataclass), classes(dataclasses.dataclass)


@records.dataclass(frozen=True, slots=True)
class Point:
    """At module level, so that it can be pickled."""

    x: float
    y: float = 0.0


@pytest.mark.parametrize("made", [OURS, STANDARD], ids=["ours", "standard"])
def test_construction_and_defaults(made: tuple[Any, Any, Any]) -> None:
    frozen, plain, checked = made
    assert (frozen(1).a, frozen(1).b, frozen(1).c) == (1, (1, 2), [])
    assert frozen(1).c is not frozen(1).c
    assert frozen(a=1, b=2, c=3).b == 2
    assert frozen(1, c=3).c == 3
    assert plain(1).b == []
    assert checked(3).a == 6
    for args, named in (((), {}), ((1, 2, 3, 4), {}), ((1,), {"d": 2}), ((1,), {"a": 2})):
        with pytest.raises(TypeError):
            frozen(*args, **named)


@pytest.mark.parametrize("made", [OURS, STANDARD], ids=["ours", "standard"])
def test_equality_and_hash(made: tuple[Any, Any, Any]) -> None:
    frozen, plain, checked = made
    assert frozen(1, 2, 3) == frozen(1, 2, 3)
    assert frozen(1, 2, 3) != frozen(1, 2, 4)
    assert hash(frozen(1, 2, 3)) == hash(frozen(1, 2, 3))
    assert checked(1) == checked(1)
    assert checked(1) != frozen(2)
    assert frozen(1) != (1, (1, 2), [])
    with pytest.raises(TypeError, match="unhashable"):
        hash(plain(1))


@pytest.mark.parametrize("made", [OURS, STANDARD], ids=["ours", "standard"])
def test_frozen_fields_stay(made: tuple[Any, Any, Any]) -> None:
    frozen, plain, _ = made
    value = frozen(1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        value.a = 2
    with pytest.raises(dataclasses.FrozenInstanceError):
        del value.a
    with pytest.raises((AttributeError, TypeError)):
        value.other = 2
    assert not hasattr(value, "__dict__")
    free = plain(1)
    free.a = 5
    assert free == plain(5)


@pytest.mark.parametrize("made", [OURS, STANDARD], ids=["ours", "standard"])
def test_library_functions_know_them(made: tuple[Any, Any, Any]) -> None:
    frozen, plain, _ = made
    assert [field.name for field in dataclasses.fields(frozen)] == ["a", "b", "c"]
    assert dataclasses.replace(frozen(1), a=2) == frozen(2)
    assert dataclasses.asdict(frozen(1)) == {"a": 1, "b": (1, 2), "c": []}
    assert repr(frozen(1)).endswith("Frozen(a=1, b=(1, 2), c=[])")
    assert repr(plain(1)).endswith("Plain(a=1, b=[])")
    assert copy.deepcopy(frozen(1)) == frozen(1)
    match frozen(7):
        case frozen(a, _, _):
            assert a == 7


@pytest.mark.parametrize("dataclass", [records.dataclass, dataclasses.dataclass])
def test_frozen_classes_can_be_extended(dataclass: Callable[..., Any]) -> None:
    @dataclass(frozen=True, slots=True)
    class Point3(Point):
        z: float = 2.0

    assert dataclasses.astuple(Point3(1.0, z=5.0)) == (1.0, 0.0, 5.0)
    assert Point3(1.0) == Point3(1.0)
    assert Point3(1.0) != Point(1.0)
    with pytest.raises(dataclasses.FrozenInstanceError):
        Point3(1.0).x = 2.0  # type: ignore[misc]


def test_instances_can_be_pickled() -> None:
    assert pickle.loads(pickle.dumps(Point(1.5))) == Point(1.5)
