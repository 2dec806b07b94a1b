"""`dataclass`, as of the standard library, for the modules that every process imports.

The standard one compiles six or seven functions a class from text, half a millisecond for a frozen
class, and its module loads `inspect`. Here classes share closures. Same arguments, behaviour and
type checking; `fields`, `replace` and `asdict` work on the classes: what they look at is made when
they do.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

__all__ = ["dataclass", "field", "field_names"]

_MISSING: Any = object()


class Field:
    """One field: its name, annotation, and default or maker of one (`_MISSING` without)."""

    __slots__ = ("annotation", "default", "factory", "name")

    def __init__(self, name: str, annotation: Any, default: Any, factory: Any) -> None:
        self.name = name
        self.annotation = annotation
        self.default = default
        self.factory = factory


class _Factory:
    """A class attribute that `field` made."""

    __slots__ = ("make",)

    def __init__(self, make: Callable[[], Any]) -> None:
        self.make = make


if TYPE_CHECKING:
    from dataclasses import dataclass, field
else:

    def field(*, default_factory: Callable[[], Any]) -> Any:
        """As of the standard library: a default that is made for each instance."""
        return _Factory(default_factory)

    def dataclass(
        cls: type | None = None, *, frozen: bool = False, slots: bool = False, eq: bool = True
    ) -> Any:
        """Decorator: a class made, compared, hashed (if frozen) and printed by its fields."""

        def decorate(cls: type) -> type:
            assert slots or not frozen, "an instance's __dict__ could be written to"
            fields = _fields(cls, frozen)
            names = tuple(fields)
            made: Any = _with_slots(cls, names) if slots else _with_defaults(cls, fields)
            made.__match_args__ = names
            standard = _Standard(cls.__name__, fields, frozen)
            made.__dataclass_fields__ = _StandardAttribute(standard, "__dataclass_fields__")
            made.__dataclass_params__ = _StandardAttribute(standard, "__dataclass_params__")
            made.__init__ = _init(made, tuple(fields.values()), slots)
            made.__repr__ = _repr(names)
            if eq:
                made.__eq__, made.__hash__ = _comparison(names, frozen)
            if frozen:
                made.__setattr__ = _refuse_assignment
                made.__delattr__ = _refuse_deletion
                made.__reduce__ = lambda self: (made, tuple(getattr(self, name) for name in names))
            return made

        return decorate if cls is None else decorate(cls)


def field_names(kind: type) -> tuple[str, ...] | None:
    """Names of the fields of a class of this module or of `dataclasses`; None for another class."""
    known = kind.__dict__.get("__dataclass_fields__")
    if isinstance(known, _StandardAttribute):
        return known.standard.names
    if not hasattr(kind, "__dataclass_fields__"):
        return None
    import dataclasses

    return tuple(of.name for of in dataclasses.fields(kind))


class _Standard:
    """A class's stand-in of the standard library, for what that library's functions look at."""

    __slots__ = ("_made", "fields", "is_frozen", "name", "names")

    def __init__(self, name: str, fields: dict[str, Field], is_frozen: bool) -> None:
        self.name = name
        self.fields = fields
        self.names = tuple(fields)
        self.is_frozen = is_frozen
        self._made: type | None = None

    def made(self) -> type:
        """The stand-in; it has the fields and nothing else."""
        if self._made is None:
            import dataclasses

            described = []
            for of in self.fields.values():
                if of.default is not _MISSING:
                    info: Any = dataclasses.field(default=of.default)
                elif of.factory is not _MISSING:
                    info = dataclasses.field(default_factory=of.factory)
                else:
                    info = dataclasses.field()
                described.append((of.name, of.annotation, info))
            self._made = dataclasses.make_dataclass(
                self.name, described, init=False, repr=False, eq=False, frozen=self.is_frozen
            )
        return self._made


class _StandardAttribute:
    """An attribute of the stand-in as one of the class."""

    __slots__ = ("_name", "standard")

    def __init__(self, standard: _Standard, name: str) -> None:
        self.standard = standard
        self._name = name

    def __get__(self, instance: object, owner: type) -> Any:
        return getattr(self.standard.made(), self._name)


def _fields(cls: type, is_frozen: bool) -> dict[str, Field]:
    """The fields of `cls` and its bases, in the order of `__init__`'s parameters."""
    fields: dict[str, Field] = {}
    for base in cls.__mro__[-1:0:-1]:
        known = base.__dict__.get("__dataclass_fields__")
        if isinstance(known, _StandardAttribute):
            if known.standard.is_frozen and not is_frozen:
                raise TypeError(f"{cls.__name__} extends a frozen class and must be frozen too")
            fields.update(known.standard.fields)
        elif known is not None:
            fields.update((name, _converted(of)) for name, of in known.items())
    for name, annotation in cls.__annotations__.items():
        if str(annotation).startswith(("ClassVar", "typing.ClassVar")):
            continue
        default = cls.__dict__.get(name, _MISSING)
        if isinstance(default, _Factory):
            fields[name] = Field(name, annotation, _MISSING, default.make)
        elif _is_standard_field(default):
            fields[name] = _converted(default, name, annotation)
        else:
            fields[name] = Field(name, annotation, default, _MISSING)
    return fields


def _is_standard_field(value: object) -> bool:
    standard = sys.modules.get("dataclasses")
    return standard is not None and isinstance(value, standard.Field)


def _converted(of: Any, name: str = "", annotation: Any = None) -> Field:
    """A field of the standard library as one of ours."""
    missing = sys.modules["dataclasses"].MISSING
    default, factory = (
        _MISSING if value is missing else value for value in (of.default, of.default_factory)
    )
    return Field(name or of.name, annotation or of.type, default, factory)


def _with_slots(cls: type, names: tuple[str, ...]) -> type:
    """`cls` made again: slots can't be given to a class that exists."""
    attributes = dict(cls.__dict__)
    inherited = {name for base in cls.__mro__[1:] for name in getattr(base, "__slots__", ())}
    for name in (*names, "__dict__", "__weakref__"):
        attributes.pop(name, None)
    attributes["__slots__"] = tuple(name for name in names if name not in inherited)
    made = type(cls)(cls.__name__, cls.__bases__, attributes)
    made.__qualname__ = cls.__qualname__
    return made


def _with_defaults(cls: type, fields: dict[str, Field]) -> type:
    """`cls` itself, its class attributes being the defaults and nothing else."""
    for name, of in fields.items():
        if of.factory is not _MISSING and name in cls.__dict__:
            delattr(cls, name)
        elif name in cls.__dict__:
            setattr(cls, name, of.default)
    return cls


def _init(cls: Any, fields: tuple[Field, ...], slots: bool) -> Callable[..., None]:
    """`__init__`; it writes to the slots themselves, as frozen classes need."""
    names = tuple(of.name for of in fields)
    setters = tuple(getattr(cls, name).__set__ for name in names) if slots else ()
    count = len(names)
    complete = _completion(cls.__name__, fields)
    has_post_init = hasattr(cls, "__post_init__")

    def __init__(self: Any, *args: Any, **named: Any) -> None:
        if len(args) != count or named:
            args = complete(args, named)
        if slots:
            # Equally many by now; checking it would cost more than the loop.
            for setter, value in zip(setters, args):  # noqa: B905
                setter(self, value)
        else:
            self.__dict__.update(zip(names, args, strict=True))
        if has_post_init:
            self.__post_init__()

    return __init__


def _completion(name: str, fields: tuple[Field, ...]) -> Callable[[Any, dict[str, Any]], Any]:
    """A function that makes one value a field of positional and named ones and of defaults."""
    place = {of.name: number for number, of in enumerate(fields)}
    defaults = [of.default for of in fields]
    without = [number for number, of in enumerate(fields) if of.default is _MISSING]

    def complete(args: Any, named: dict[str, Any]) -> list[Any]:
        given = len(args)
        if given > len(fields):
            raise TypeError(f"{name}() takes {len(fields)} arguments but {given} were given")
        values = [*args, *defaults[given:]]
        for key, value in named.items():
            if place.get(key, -1) < given:
                raise TypeError(f"{name}() got an unexpected or repeated argument {key!r}")
            values[place[key]] = value
        for number in without:
            if values[number] is _MISSING:
                if fields[number].factory is _MISSING:
                    raise TypeError(f"{name}() misses argument {fields[number].name!r}")
                values[number] = fields[number].factory()
        return values

    return complete


def _comparison(names: tuple[str, ...], frozen: bool) -> tuple[Any, Any]:
    # With one name an attrgetter gives the value itself, which compares and hashes as well.
    values = operator.attrgetter(*names) if names else lambda _: ()

    def __eq__(self: Any, other: object) -> Any:
        if other.__class__ is not self.__class__:
            return NotImplemented
        return self is other or values(self) == values(other)

    def __hash__(self: Any) -> int:
        return hash(values(self))

    return __eq__, __hash__ if frozen else None


def _repr(names: tuple[str, ...]) -> Callable[[Any], str]:
    def __repr__(self: Any) -> str:
        shown = ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
        return f"{type(self).__qualname__}({shown})"

    return __repr__


def _refuse_assignment(self: object, name: str, value: object) -> None:
    import dataclasses

    raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_deletion(self: object, name: str) -> None:
    import dataclasses

    raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")
