"""This package under the peer's name, so that `import nvfuser_direct` gives it."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from fuser_direct.errors import UsageError

_NAME = "nvfuser_direct"
_OVERRIDES = ("version", "__version__")
# Submodules of the peer that are modules here; pytorch_utils imports PyTorch, so it waits for its
# first use.
_SUBMODULES = {
    "ops": "fuser_direct.ops",
    "schedule": "fuser_direct.schedule",
    "multidevice": "fuser_direct.multidevice",
    "idm": "fuser_direct.idm",
    "nvfuser_direct_version": "fuser_direct.nvfuser_direct_version",
}
_LAZY_SUBMODULES = {"pytorch_utils": "fuser_direct.pytorch_utils"}


class _Alias(ModuleType):
    """Stands for `fuser_direct`, and reports the version of the API that programs compare."""

    def __getattr__(self, name: str) -> Any:
        if name in _OVERRIDES:
            versions = import_module("fuser_direct.nvfuser_direct_version")
            return versions.version if name == "version" else versions.API_VERSION
        if name == "__all__":
            return import_module("fuser_direct").__all__
        if name.startswith("__"):
            raise AttributeError(f"module {_NAME!r} has no attribute {name!r}")
        if name in _LAZY_SUBMODULES:
            return import_module(f"{_NAME}.{name}")
        return getattr(import_module("fuser_direct"), name)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *dir(import_module("fuser_direct")), *_OVERRIDES})


class _LazyFinder(MetaPathFinder, Loader):
    """Finds the submodules that wait for their first use."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """A spec for `nvfuser_direct.<lazy submodule>`."""
        package, _, submodule = name.rpartition(".")
        if package == _NAME and submodule in _LAZY_SUBMODULES and _is_installed():
            return ModuleSpec(name, _LAZY_FINDER)
        return None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """The real submodule."""
        return import_module(_LAZY_SUBMODULES[spec.name.rpartition(".")[2]])

    def exec_module(self, module: ModuleType) -> None:
        """Nothing: it was executed under its own name."""


_LAZY_FINDER = _LazyFinder()


def _is_installed() -> bool:
    return isinstance(sys.modules.get(_NAME), _Alias)


def install_as_nvfuser_direct() -> ModuleType:
    """Enter this package and its submodules in `sys.modules` as `nvfuser_direct`; returns that
    module.

    `nvfuser_direct.version()` is the peer's version whose API this package follows, which programs
    compare; everything else is this package's. Harmless when called twice. Warns, as the peer's own
    import does, if a module `nvfuser` is loaded. Raises UsageError if the peer itself is loaded.
    """
    if _is_installed():
        return sys.modules[_NAME]
    if _NAME in sys.modules:
        raise UsageError(
            "install_as_nvfuser_direct: nvfuser_direct itself is imported already; call this "
            "before anything imports it"
        )
    if "nvfuser" in sys.modules:
        warnings.warn(
            "Be careful! You've imported nvfuser_direct when the module nvfuser is already "
            "imported",
            UserWarning,
            stacklevel=2,
        )
    package = _Alias(_NAME, import_module("fuser_direct").__doc__)
    # A package, so that `import nvfuser_direct.ops` looks its submodules up.
    package.__path__ = []
    package.__spec__ = ModuleSpec(_NAME, None, is_package=True)
    modules: dict[str, ModuleType] = {
        name: import_module(real) for name, real in _SUBMODULES.items()
    }
    modules["_C_DIRECT"] = package
    for name, module in modules.items():
        sys.modules[f"{_NAME}.{name}"] = module
        setattr(package, name, module)
    sys.modules[_NAME] = package
    sys.meta_path.append(_LAZY_FINDER)
    return package
