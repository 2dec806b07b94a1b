"""Options of `execute` and of the environment, as the peer names them; each is accepted, unknown
names are refused.

These make a difference: `autotune`, which the peer doesn't have, `fast_math` and `kernel_profile`
(enable), the dumps that `compiler.dump` writes, and any item of NVFUSER_PROF, which measures every
kernel (`profiler`).
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable

from fuser_direct.errors import InputError
from fuser_direct.records import dataclass

# An item of a list: a name, with arguments in parentheses or without.
_ITEM = r"\s*([^,()\s]+)\s*(?:\([^()]*\))?\s*(?:,|$)"


@dataclass(frozen=True, slots=True)
class Environment:
    """What the environment variables NVFUSER_ENABLE, _DISABLE, _DUMP and _PROF name."""

    enable: frozenset[str]
    disable: frozenset[str]
    dump: frozenset[str]
    prof: frozenset[str]


@functools.cache
def environment() -> Environment:
    """The options of the environment, read at the first call. Raises InputError for names that
    are no option."""
    return Environment(*(_parsed(kind) for kind in ("ENABLE", "DISABLE", "DUMP", "PROF")))


def _parsed(kind: str) -> frozenset[str]:
    variable = f"NVFUSER_{kind}"
    text = os.environ.get(variable, "")
    if not text:
        return frozenset()
    import re

    from fuser_direct import option_names

    known: frozenset[str] = getattr(option_names, f"{kind}_OPTIONS")
    an_item = re.compile(_ITEM)
    names = set()
    place = 0
    while place < len(text):
        item = an_item.match(text, place)
        if item is None:
            raise InputError(
                f"{variable}: can't read {text[place:]!r}; expected names with commas between "
                "them, each with "
                "arguments in parentheses or without"
            )
        if item.group(1) not in known:
            raise InputError(
                f"{variable}: Unrecognized option: {item.group(1)}; known are "
                f"{', '.join(sorted(known))}"
            )
        names.add(item.group(1))
        place = item.end()
    return frozenset(names)


def effective(
    enable: Iterable[str], disable: Iterable[str]
) -> tuple[frozenset[str], frozenset[str]]:
    """A call's options with those of the environment. Raises InputError for a name that is no
    option."""
    check(enable, disable)
    known = environment()
    return known.enable | set(enable), known.disable | set(disable)


def check(enable: Iterable[str], disable: Iterable[str]) -> None:
    """Raise InputError for a name that is no option."""
    if not (enable or disable):
        return
    from fuser_direct.option_names import DISABLE_OPTIONS, ENABLE_OPTIONS

    for names, known, what in (
        (enable, ENABLE_OPTIONS, "enable_option"),
        (disable, DISABLE_OPTIONS, "disable_option"),
    ):
        for name in names:
            if name not in known:
                raise InputError(
                    f"execute: Unrecognized {what}: {name}; known are {', '.join(sorted(known))}"
                )
