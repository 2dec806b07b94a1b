"""The package's version."""

from __future__ import annotations

import re

_RELEASE = r"\d+(\.\d+)*"


class Version(str):
    """A version that is a string and compares by its release numbers: "0.10.0" > "0.9.1".

    What follows a `+` is left out. Compares with strings and with anything that has a `release`
    tuple, such as `packaging.version.Version`; ValueError otherwise.
    """

    __slots__ = ()

    def _release(self) -> tuple[int, ...]:
        return _release_of(self)

    def __eq__(self, other: object) -> bool:
        return self._release() == _release_of(other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __lt__(self, other: object) -> bool:
        return self._release() < _release_of(other)

    def __le__(self, other: object) -> bool:
        return self._release() <= _release_of(other)

    def __gt__(self, other: object) -> bool:
        return self._release() > _release_of(other)

    def __ge__(self, other: object) -> bool:
        return self._release() >= _release_of(other)

    def __hash__(self) -> int:
        return hash(self._release())


def _release_of(version: object) -> tuple[int, ...]:
    """The release numbers without trailing zeros: "1.2.0+git1" gives (1, 2)."""
    if isinstance(version, str):
        match = re.match(_RELEASE, version.partition("+")[0])
        if match is None:
            raise ValueError(f"{version!r} is not a version: expected numbers such as '0.1.0'")
        numbers = tuple(int(part) for part in match.group().split("."))
    else:
        release = getattr(version, "release", None)
        if not isinstance(release, tuple):
            raise ValueError(
                f"a version compares with a string or a packaging Version, not with {version!r}"
            )
        numbers = release
    while numbers and numbers[-1] == 0:
        numbers = numbers[:-1]
    return numbers


__version__ = Version("0.1.0")


def version() -> Version:
    """The version of fuser_direct."""
    return __version__
