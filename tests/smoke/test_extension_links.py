"""The extension needs the C and C++ runtimes alone, and takes no symbol of PyTorch or CUDA."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fuser_direct import _ext
from tests.smoke import elf

ALLOWED = re.compile(
    r"(libc|libstdc\+\+|libgcc_s|libm|libpthread|libdl|ld-linux-x86-64|ld-linux-aarch64)\.so\.\d+"
)
# Mangled names of the namespaces at, c10 and torch; C names of CUDA's libraries and of OpenMP.
FOREIGN = re.compile(
    r"_ZN[KVO]*(2at|3c10|5torch|6caffe2)|THP|aoti_torch|"
    r"(cu|cuda|nvrtc|cublas|cudnn)[A-Z]|__cuda|GOMP|omp_"
)


@pytest.fixture(scope="module")
def extension() -> elf.Elf:
    """The extension module's file."""
    assert _ext.__file__ is not None
    return elf.read(Path(_ext.__file__))


def test_reader_sees_what_is_there(extension: elf.Elf) -> None:
    assert "PyInit__ext" in extension.defined
    assert "dlopen" in extension.undefined
    assert any(name.startswith("Py") for name in extension.undefined)
    assert any(name.startswith("libc.so") for name in extension.needed)


def test_needed_libraries_are_the_c_and_cpp_runtimes(extension: elf.Elf) -> None:
    print("NEEDED", *extension.needed)
    assert [name for name in extension.needed if not ALLOWED.fullmatch(name)] == []


def test_no_symbol_of_pytorch_or_cuda_is_undefined(extension: elf.Elf) -> None:
    assert [name for name in extension.undefined if FOREIGN.match(name)] == []


@pytest.mark.parametrize(
    "name",
    ["_ZN2at4addEv", "_ZNK3c106Device3strEv", "_ZN5torch3jitEv", "cuInit", "cudaMalloc",
     "nvrtcVersion", "THPVariable_Wrap", "GOMP_parallel", "omp_get_num_threads"],
)  # fmt: skip
def test_foreign_names_are_recognised(name: str) -> None:
    assert FOREIGN.match(name)


@pytest.mark.parametrize(
    "name", ["dlopen", "memcpy", "_ZNSt6vectorIiE", "PyList_New", "custom_name"]
)
def test_own_names_are_not_taken_for_foreign(name: str) -> None:
    assert not FOREIGN.match(name)
