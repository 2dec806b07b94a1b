"""`dataclass`, as of the standard library, for the modules that every process imports.

The standard one compiles six or seven functions a class from text, half a millisecond for a frozen
class; forty classes were half the time until a kernel of the disk cache could run. Here they share
closures. Same arguments, behaviour and type checking; `fields`, `replace` and `asdict` work on the
classes.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

__all__ = ["dataclass"]

if TYPE_CHECKING:
    from dataclasses import dataclass
else:

    def dataclass(
        cls: type | None = None, *, frozen: bool = False, slots: bool = False, eq: bool = True
    ) -> Any:
        """Decorator: a class made, compared, hashed (if frozen) and printed by its fields."""

        def decorate(cls: type) -> type:
            # Gives slots, fields and __match_args__, for which nothing is compiled, unless a base
            # is frozen: the standard decorator insists on `frozen` then.
            extends = frozen and any(map(dataclasses.is_dataclass, cls.__mro__[1:]))
            made = dataclasses.dataclass(
                init=False, repr=False, eq=False, slots=slots, frozen=extends
            )(cls)
            fields = dataclasses.fields(made)
            names = tuple(field.name for field in fields)
            made.__init__ = _init(made, fields, slots)
            made.__repr__ = _repr(names)
            if eq:
                made.__eq__, made.__hash__ = _comparison(names, frozen)
            if frozen:
                assert slots, "an instance's __dict__ could be written to"
                # What the standard decorator looks at in the bases of a class.
                made.__dataclass_params__.frozen = True
                made.__setattr__ = _refuse_assignment
                made.__delattr__ = _refuse_deletion
                made.__reduce__ = lambda self: (made, tuple(getattr(self, name) for name in names))
            return made

        return decorate if cls is None else decorate(cls)


def _init(cls: Any, fields: tuple[dataclasses.Field[Any], ...], slots: bool) -> Callable[..., None]:
    """`__init__`; it writes to the slots themselves, as frozen classes need."""
    names = tuple(field.name for field in fields)
    setters = tuple(getattr(cls, name).__set__ for name in names) if slots else ()
    count = len(names)
    has_post_init = hasattr(cls, "__post_init__")

    def __init__(self: Any, *args: Any, **named: Any) -> None:
        if len(args) != count or named:
            args = tuple(_completed(cls, fields, args, named))
        if slots:
            # Equally many by now; checking it would cost more than the loop.
            for setter, value in zip(setters, args):  # noqa: B905
                setter(self, value)
        else:
            self.__dict__.update(zip(names, args, strict=True))
        if has_post_init:
            self.__post_init__()

    return __init__


def _completed(
    cls: type, fields: tuple[dataclasses.Field[Any], ...], args: Any, named: dict[str, Any]
) -> list[Any]:
    """One value a field, from positional and named ones and defaults."""
    if len(args) > len(fields):
        raise TypeError(
            f"{cls.__name__}() takes {len(fields)} arguments but {len(args)} were given"
        )
    values = list(args)
    for field in fields[len(args) :]:
        if field.name in named:
            values.append(named.pop(field.name))
        elif field.default is not dataclasses.MISSING:
            values.append(field.default)
        elif field.default_factory is not dataclasses.MISSING:
            values.append(field.default_factory())
        else:
            raise TypeError(f"{cls.__name__}() misses argument {field.name!r}")
    if named:
        raise TypeError(f"{cls.__name__}() got an unexpected or repeated argument {min(named)!r}")
    return values


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
    raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_deletion(self: object, name: str) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")
