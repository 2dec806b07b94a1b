"""The version of the peer's API that programs see under its name (`install_as_nvfuser_direct`)."""

from __future__ import annotations

from typing import Any

from fuser_direct.version import Version as NvfuserVersion

__all__ = ["API_VERSION", "NvfuserVersion", "Version", "version"]

# The release of nvfuser_direct whose API this package follows. Programs compare it, so it can't be
# the version of this package.
API_VERSION = NvfuserVersion("0.2.36")


def version() -> NvfuserVersion:
    """The peer's version that this package stands for."""
    return API_VERSION


class _LazyVersion(type):
    """`packaging` is imported when a version is made or asked for."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        from packaging.version import Version as Real

        return Real(*args, **kwargs)

    def __instancecheck__(cls, instance: object) -> bool:
        from packaging.version import Version as Real

        return isinstance(instance, Real)


class Version(metaclass=_LazyVersion):
    """Stands for `packaging.version.Version`: calling it makes one, and isinstance asks for one."""
