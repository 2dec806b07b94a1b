"""The enumerations of the public API, with the behaviour of pybind11's `enum_`.

`str(x)` is `DataType.Float`, `repr(x)` is `<DataType.Float: 1>`; members are hashable, equal only
to members of their own type, truthy, and made from an int; the type is not iterable and has
`__members__` and (unmangled) `__entries`.
"""

from __future__ import annotations

from typing import Any, ClassVar, TypeVar

_Self = TypeVar("_Self", bound="NativeEnum")


class _Entries:
    """Each member with its docstring, of which there is none, by its name."""

    def __get__(self, instance: object, owner: type[NativeEnum]) -> dict[str, tuple[Any, None]]:
        return {name: (member, None) for name, member in owner.__members__.items()}


class NativeEnum:
    """Base of the enumerations: a subclass's annotations name its members, in order of their
    values."""

    __slots__ = ("name", "value")
    __members__: ClassVar[dict[str, Any]] = {}
    name: str
    value: int

    def __init_subclass__(cls) -> None:
        cls.__members__ = {}
        names = [name.rstrip("_") for name in cls.__annotations__]
        for value, name in enumerate(names):
            member = object.__new__(cls)
            object.__setattr__(member, "name", name)
            object.__setattr__(member, "value", value)
            cls.__members__[name] = member
            setattr(cls, name, member)

    def __new__(cls: type[_Self], value: int) -> _Self:
        for member in cls.__members__.values():
            if member.value == value:
                return member  # type: ignore[no-any-return]
        raise ValueError(f"{value} is not a valid {cls.__name__}")

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__} members are constant; can't set {name!r}")

    def __int__(self) -> int:
        return self.value

    __index__ = __int__

    # By identity, as members are equal: compiling looks members up hundreds of times a fusion.
    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other

    def __reduce__(self) -> tuple[type[NativeEnum], tuple[int]]:
        return type(self), (self.value,)

    def __str__(self) -> str:
        return f"{type(self).__name__}.{self.name}"

    def __repr__(self) -> str:
        return f"<{type(self).__name__}.{self.name}: {self.value}>"


# Read by programs written for pybind11 enums, under this very name.
setattr(NativeEnum, "__entries", _Entries())


class DataType(NativeEnum):
    """Element types. `Int` is int64; `Index` is int64 on the host and as wide as a kernel's
    index on a device."""

    Double: ClassVar[DataType]
    Float: ClassVar[DataType]
    Half: ClassVar[DataType]
    Int: ClassVar[DataType]
    Int32: ClassVar[DataType]
    UInt64: ClassVar[DataType]
    Index: ClassVar[DataType]
    Bool: ClassVar[DataType]
    BFloat16: ClassVar[DataType]
    Float8_e4m3fn: ClassVar[DataType]
    Float8_e5m2: ClassVar[DataType]
    Float8_e8m0fnu: ClassVar[DataType]
    Float4_e2m1fn: ClassVar[DataType]
    Float4_e2m1fn_x2: ClassVar[DataType]
    ComplexFloat: ClassVar[DataType]
    ComplexDouble: ClassVar[DataType]
    Null: ClassVar[DataType]


class SchedulerType(NativeEnum):
    """Which scheduler made (or is to make) a kernel."""

    none: ClassVar[SchedulerType]
    no_op: ClassVar[SchedulerType]
    pointwise: ClassVar[SchedulerType]
    matmul: ClassVar[SchedulerType]
    reduction: ClassVar[SchedulerType]
    inner_persistent: ClassVar[SchedulerType]
    inner_outer_persistent: ClassVar[SchedulerType]
    outer_persistent: ClassVar[SchedulerType]
    transpose: ClassVar[SchedulerType]
    expr_eval: ClassVar[SchedulerType]
    resize: ClassVar[SchedulerType]
    communication: ClassVar[SchedulerType]


class ParallelType(NativeEnum):
    """What a loop axis is bound to."""

    mesh_x: ClassVar[ParallelType]
    mesh_y: ClassVar[ParallelType]
    mesh_z: ClassVar[ParallelType]
    grid_x: ClassVar[ParallelType]
    grid_y: ClassVar[ParallelType]
    grid_z: ClassVar[ParallelType]
    block_x: ClassVar[ParallelType]
    block_y: ClassVar[ParallelType]
    block_z: ClassVar[ParallelType]
    mma: ClassVar[ParallelType]
    serial: ClassVar[ParallelType]
    tma: ClassVar[ParallelType]
    unroll: ClassVar[ParallelType]
    unswitch: ClassVar[ParallelType]
    vectorize: ClassVar[ParallelType]
    stream: ClassVar[ParallelType]


class MemoryType(NativeEnum):
    """Where a tensor lives while a kernel runs; `global` is a keyword: read it with `getattr`."""

    tensor: ClassVar[MemoryType]
    local: ClassVar[MemoryType]
    shared: ClassVar[MemoryType]
    global_: ClassVar[MemoryType]
    symmetric: ClassVar[MemoryType]


class CommunicatorBackend(NativeEnum):
    """Which library moves data between devices."""

    nccl: ClassVar[CommunicatorBackend]
    ucc: ClassVar[CommunicatorBackend]
    cuda: ClassVar[CommunicatorBackend]


class LoadStoreOpType(NativeEnum):
    """The instruction that copies a tensor."""

    set: ClassVar[LoadStoreOpType]
    load_matrix: ClassVar[LoadStoreOpType]
    cp_async: ClassVar[LoadStoreOpType]
    tma: ClassVar[LoadStoreOpType]


class CacheOp(NativeEnum):
    """Cache hint of a copy; `global` is a keyword, so read it with `getattr`."""

    unspecified: ClassVar[CacheOp]
    all_levels: ClassVar[CacheOp]
    streaming: ClassVar[CacheOp]
    global_: ClassVar[CacheOp]


class IdMappingMode(NativeEnum):
    """What makes two axes the same; `idm` says which this version tells apart."""

    exact: ClassVar[IdMappingMode]
    almost_exact: ClassVar[IdMappingMode]
    broadcast: ClassVar[IdMappingMode]
    permissive: ClassVar[IdMappingMode]
    loop: ClassVar[IdMappingMode]
