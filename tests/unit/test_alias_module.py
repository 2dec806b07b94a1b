"""The package under the peer's name: its modules, what they hold, and what is refused."""

from __future__ import annotations

import subprocess
import sys

import pytest


def _run(script: str) -> str:
    """Output of a fresh interpreter, since the alias stays for the life of a process."""
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", "-c", script], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


INSTALL = "import fuser_direct; package = fuser_direct.install_as_nvfuser_direct(); "


def test_the_names_are_this_packages() -> None:
    script = INSTALL + (
        "import nvfuser_direct as n; "
        "assert n is package and fuser_direct.install_as_nvfuser_direct() is n; "
        "missing = [k for k in fuser_direct.__all__ if k not in ('version', '__version__') "
        "and getattr(n, k) is not getattr(fuser_direct, k)]; print(missing)"
    )
    assert _run(script) == "[]"


def test_a_star_import_brings_the_names_and_the_apis_version() -> None:
    script = INSTALL + (
        "exec('from nvfuser_direct import *'); "
        "print([k for k in fuser_direct.__all__ if k not in globals()], version())"
    )
    assert _run(script) == "[] 0.2.36"


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("ops", "add"),
        ("schedule", "inline_most"),
        ("multidevice", "DeviceMesh"),
        ("idm", "IdModel"),
        ("_C_DIRECT", "DataType"),
        ("pytorch_utils", "torch_dtype_to_nvfuser_dtype"),
        ("nvfuser_direct_version", "NvfuserVersion"),
    ],
)
def test_submodules_are_imported_by_their_full_names(module: str, name: str) -> None:
    script = INSTALL + (
        f"import nvfuser_direct.{module}; from nvfuser_direct.{module} import {name}; "
        f"from nvfuser_direct import {module}; print(getattr({module}, '{name}') is {name})"
    )
    assert _run(script) == "True"


def test_the_version_is_the_api_that_programs_compare() -> None:
    script = INSTALL + (
        "import nvfuser_direct as n; v = n.version(); "
        "print(v >= '0.2.34', v == n.__version__, fuser_direct.version() == v, "
        "type(v) is n.nvfuser_direct_version.NvfuserVersion)"
    )
    assert _run(script) == "True True False True"


def test_versions_compare_with_packaging() -> None:
    pytest.importorskip("packaging")
    script = INSTALL + (
        "from nvfuser_direct.nvfuser_direct_version import NvfuserVersion, Version; "
        "v = NvfuserVersion('0.2.10+gitabc1234'); "
        "print(v > Version('0.2.9'), v == '0.2.10', isinstance(Version('1'), Version))"
    )
    assert _run(script) == "True True True"


def test_installing_imports_no_pytorch() -> None:
    assert _run(INSTALL + "import sys; print('torch' in sys.modules)") == "False"


def test_a_loaded_legacy_package_is_warned_of() -> None:
    script = (
        "import sys, types, warnings; sys.modules['nvfuser'] = types.ModuleType('nvfuser')\n"
        "import fuser_direct\n"
        "with warnings.catch_warnings(record=True) as seen:\n"
        "    warnings.simplefilter('always')\n"
        "    fuser_direct.install_as_nvfuser_direct()\n"
        "print([w.category.__name__ for w in seen])"
    )
    assert _run(script) == "['UserWarning']"


def test_the_peer_itself_is_not_replaced() -> None:
    script = (
        "import sys, types; peer = types.ModuleType('nvfuser_direct')\n"
        "sys.modules['nvfuser_direct'] = peer\n"
        "import fuser_direct\n"
        "try:\n"
        "    fuser_direct.install_as_nvfuser_direct()\n"
        "except AssertionError as error:\n"
        "    print('imported already' in str(error), sys.modules['nvfuser_direct'] is peer)"
    )
    assert _run(script) == "True True"


def test_an_unknown_name_is_an_attribute_error() -> None:
    script = INSTALL + "print(hasattr(package, 'no_such_thing'), hasattr(package, '__wrapped__'))"
    assert _run(script) == "False False"
