"""Import, construction, definition, printing and a CPU run touch nothing of CUDA.

GPU work is refused, with the reason by name.
"""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from tests.smoke.conftest import CUDA_NAMES, Python
from tests.smoke.scripts import (
    ASK_FOR_GPU,
    CONSTRUCT,
    DEFINE,
    EVERYTHING_BUT_A_GPU,
    FORK,
    NO_CUDA_MAPPED,
    RUN_NUMPY,
)

WAYS = ("execute", "device_properties", "load", "arch_of")


# (a) No driver at all.


@pytest.mark.usefixtures("no_driver")
def test_everything_but_gpu_work_runs_without_a_driver(python: Python) -> None:
    assert python(EVERYTHING_BUT_A_GPU).out.endswith("passed\n")


@pytest.mark.usefixtures("no_driver")
def test_gpu_work_without_a_driver_names_the_missing_library(python: Python) -> None:
    said = json.loads(python(ASK_FOR_GPU).out)
    assert said["status"]["available"] is False
    assert said["status"]["reason"] == "no_library"
    for way in WAYS:
        assert said[way] is not None, f"{way} raised nothing"
        assert "libcuda.so.1" in said[way]
        assert "install an NVIDIA driver" in said[way]


# (b) A driver that is too old.


def test_everything_but_gpu_work_runs_beside_an_old_driver(
    python: Python, old_driver: Path, tmp_path: Path
) -> None:
    calls = tmp_path / "calls"
    done = python(EVERYTHING_BUT_A_GPU, libraries=old_driver, STUB_CALLS=str(calls))
    assert done.out.endswith("passed\n")
    assert not calls.exists(), calls.read_text()


def test_gpu_work_beside_an_old_driver_gives_both_versions(
    python: Python, old_driver: Path, tmp_path: Path
) -> None:
    calls = tmp_path / "calls"
    said = json.loads(python(ASK_FOR_GPU, libraries=old_driver, STUB_CALLS=str(calls)).out)
    assert said["status"]["reason"] == "driver_too_old"
    assert said["status"]["driver_version"] == "11.4"
    for way in WAYS:
        assert said[way] is not None, f"{way} raised nothing"
        assert "CUDA 11.4" in said[way]
        assert "12.0" in said[way]
        assert "update it" in said[way]
    assert "cuDriverGetVersion" in calls.read_text()  # so the stub does record


# (c) Tripwires: libraries that abort when opened.


def test_everything_but_gpu_work_opens_no_library_of_cuda(python: Python, tripwire: Path) -> None:
    assert python(EVERYTHING_BUT_A_GPU, libraries=tripwire).out.endswith("passed\n")


def test_tripwire_springs_when_gpu_work_is_asked_for(python: Python, tripwire: Path) -> None:
    script = CONSTRUCT + "from fuser_direct import _ext; _ext.device_properties(0)"
    done = python(script, libraries=tripwire, code=-signal.SIGABRT)
    assert "TRIPWIRE" in done.err


@pytest.mark.parametrize("name", CUDA_NAMES)
def test_tripwire_springs_under_each_name(python: Python, tripwire: Path, name: str) -> None:
    script = f"import ctypes; ctypes.CDLL({name!r})"
    assert "TRIPWIRE" in python(script, libraries=tripwire, code=-signal.SIGABRT).err


# (d) PyTorch absent, and present, imported before and after.

NO_TORCH = """
import importlib.abc, sys
class NoTorch(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "functorch", "torchgen"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, NoTorch())
try:
    import torch
except ModuleNotFoundError:
    pass
else:
    raise AssertionError("torch is still to be had")
"""

RUN_TORCH = """
def run_torch(fd):
    x = torch.linspace(-3, 3, 5 * 37).reshape(5, 37)
    bias = torch.linspace(-1, 1, 37)
    y, total = fd.execute([x, bias])
    expected = torch.relu(x.double() * 2 + bias)
    assert type(y) is torch.Tensor and y.dtype == torch.float32
    torch.testing.assert_close(y.double(), expected, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(total.double(), expected.sum(1), rtol=1e-5, atol=1e-6)
"""


def test_everything_but_gpu_work_runs_without_pytorch(python: Python) -> None:
    script = NO_TORCH + EVERYTHING_BUT_A_GPU + "assert 'torch' not in sys.modules\n"
    assert python(script).out.endswith("passed\n")


def test_numpy_run_does_not_import_an_installed_pytorch(python: Python) -> None:
    python(EVERYTHING_BUT_A_GPU + "assert 'torch' not in sys.modules\n")


@pytest.mark.parametrize("order", ["before", "after"])
def test_runs_with_pytorch_imported_before_or_after(python: Python, order: str) -> None:
    has_torch = python("import importlib.util as u; print(u.find_spec('torch') is not None)")
    if has_torch.out.strip() != "True":
        pytest.skip("PyTorch is not installed: the case with it was NOT tested")
    first, last = ("import torch\n", "") if order == "before" else ("", "import torch\n")
    body = DEFINE + RUN_TORCH + RUN_NUMPY
    script = first + CONSTRUCT + last + body + "run_torch(define_and_print()); run_numpy(define())"
    python(script)


# (e) Fork after import and definition; the first use is the child's.


def test_child_of_a_process_that_only_defined_can_run(python: Python) -> None:
    script = f"""{CONSTRUCT}{DEFINE}{RUN_NUMPY}{FORK}
construct_all()
fd = define_and_print()
print(in_child(lambda: run_numpy(fd)))
print(in_child(lambda: run_numpy(fd)))
run_numpy(fd)
print(in_child(lambda: run_numpy(define())))
"""
    assert python(script).out.split() == ["ok", "ok", "ok"]


def test_child_of_a_process_that_only_defined_is_not_taken_for_one_forked_after_use(
    python: Python,
) -> None:
    script = f"""{CONSTRUCT}{DEFINE}{FORK}
from fuser_direct import _ext
construct_all(), define_and_print()
reason = lambda: _ext.cuda_status()["reason"]
print(in_child(reason), reason())
"""
    in_child, in_parent = python(script).out.split()
    assert in_child == in_parent != "forked"


def test_parent_stays_clean_of_cuda_after_defining_for_its_children(
    python: Python, tripwire: Path
) -> None:
    script = f"""{CONSTRUCT}{DEFINE}{RUN_NUMPY}{NO_CUDA_MAPPED}{FORK}
fd = define_and_print()
print(in_child(lambda: run_numpy(fd)))
assert_no_cuda()
"""
    assert python(script, libraries=tripwire).out == "ok\n"


# Compiling CUDA text needs NVRTC, and no driver.

BUILD = """
import json, sys
from fuser_direct import _ext
from fuser_direct.compiler import build_cuda
from fuser_direct.errors import UnsupportedError
TEXT = 'extern "C" __global__ void k(float* p) { p[threadIdx.x] = expf(p[threadIdx.x]); }'
try:
    said = {arch: build_cuda.build(TEXT, "k", arch)[:4].hex() for arch in ARCHS}
except UnsupportedError as error:
    said = str(error)
maps = open("/proc/self/maps").read()
assert "/libcuda.so" not in maps and "/libcudart" not in maps, maps
print(json.dumps(said))
"""


def test_cubin_for_a_named_target_builds_without_a_driver_or_the_extra_is_named(
    python: Python, old_driver: Path, tmp_path: Path
) -> None:
    calls = tmp_path / "calls"
    script = "ARCHS = ('sm_80', 'sm_90a')\n" + BUILD
    said = json.loads(python(script, libraries=old_driver, STUB_CALLS=str(calls)).out)
    if isinstance(said, str):
        assert "pip install fuser_direct[cu13]" in said
    else:
        assert said == {"sm_80": "7f454c46", "sm_90a": "7f454c46"}
    assert not calls.exists(), calls.read_text()


def test_missing_nvrtc_names_the_extra_to_install(python: Python) -> None:
    hide = NO_TORCH.replace('("torch", "functorch", "torchgen")', '("torch", "nvidia", "cuda")')
    said = json.loads(python(hide + "ARCHS = ('sm_90a',)\n" + BUILD, FUSER_DIRECT_NVRTC="").out)
    assert isinstance(said, str)
    assert "pip install fuser_direct[cu13]" in said
    assert "fuser_direct[cu12]" in said
