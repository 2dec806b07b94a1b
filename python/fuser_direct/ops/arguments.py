"""Overloads by argument type, as the peer's bindings resolve them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fuser_direct.errors import DefinitionTypeError
from fuser_direct.records import dataclass

REQUIRED = object()


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of an overload: name, type in words, what it accepts, and its default."""

    name: str
    type_text: str
    accepts: Callable[[Any], bool]
    default: Any = REQUIRED

    def text(self) -> str:
        """As in a signature."""
        default = "" if self.default is REQUIRED else f" = {self.default}"
        return f"{self.name}: {self.type_text}{default}"


Overload = tuple[Parameter, ...]


def resolve(
    function: str, overloads: Sequence[Overload], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[int, dict[str, Any]]:
    """The first overload that takes the arguments, by number, and all its parameters' values.

    Raises DefinitionTypeError listing the overloads if none fits.
    """
    for number, overload in enumerate(overloads):
        bound = _bind(overload, args, kwargs)
        if bound is not None:
            return number, bound
    signatures = "\n".join(
        f"    {i + 1}. {function}({', '.join(p.text() for p in overload)})"
        for i, overload in enumerate(overloads)
    )
    invoked = [repr(arg) for arg in args] + [f"{name}={value!r}" for name, value in kwargs.items()]
    raise DefinitionTypeError(
        f"{function}(): incompatible function arguments. The following argument types are "
        "supported:\n"
        f"{signatures}\nInvoked with: {', '.join(invoked)}"
    )


def _bind(
    overload: Overload, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, Any] | None:
    if len(args) > len(overload):
        return None
    bound = dict(zip((p.name for p in overload), args, strict=False))
    for name, value in kwargs.items():
        if name in bound or all(name != p.name for p in overload):
            return None
        bound[name] = value
    for parameter in overload:
        if parameter.name not in bound:
            if parameter.default is REQUIRED:
                return None
            bound[parameter.name] = parameter.default
        elif not parameter.accepts(bound[parameter.name]):
            return None
    return bound
