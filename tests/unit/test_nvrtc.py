"""Building CUDA text without a GPU: targets, options, errors, and where NVRTC is looked for."""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fuser_direct import _ext, cuda
from fuser_direct.compiler import build_cuda
from fuser_direct.compiler.build_cuda import CudaOptions, build, pick_arch
from fuser_direct.errors import CompileError, UnsupportedError

AXPY = """
extern "C" __global__ void axpy(const float* x, float* y, float a, float b, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = a * x[i] + b;
}
"""
# Enough values alive at once for a limit on registers to bite.
MANY_REGISTERS = """
extern "C" __global__ void many(float* p) {
  float v[96];
#pragma unroll
  for (int i = 0; i < 96; ++i) v[i] = p[i * 1024 + threadIdx.x];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 96; ++i) p[(95 - i) * 1024 + threadIdx.x] = v[i] * v[(i * 7 + 1) % 96];
}
"""


@pytest.fixture(scope="module")
def nvrtc() -> cuda.NvrtcLibrary:
    """This machine's NVRTC."""
    try:
        return cuda.find_nvrtc()
    except UnsupportedError as error:
        pytest.skip(f"NO NVRTC, so its tests did not run: {error}")


def ptx(text: str, options: CudaOptions = build_cuda.DEFAULT_OPTIONS) -> str:
    return build(text, "kernel", "compute_80", options).decode()


@pytest.mark.parametrize(
    ("arch", "number"), [("sm_80", 80), ("sm_90a", 90), ("sm_100", 100), ("sm_120a", 120)]
)
def test_cubin_is_for_the_named_target(nvrtc: cuda.NvrtcLibrary, arch: str, number: int) -> None:
    if number not in nvrtc.targets:
        pytest.skip(f"NVRTC {nvrtc.version} doesn't build for {arch}")
    image = build(AXPY, "axpy", arch)
    assert image[:4] == b"\x7fELF"
    flags = int.from_bytes(image[48:52], "little")
    assert number in (flags & 0xFF, flags >> 8 & 0xFF)  # layout of CUDA 12, of CUDA 13
    assert b"axpy" in image


def test_ptx_is_text_for_the_named_target(nvrtc: cuda.NvrtcLibrary) -> None:
    text = ptx(AXPY)
    assert ".target sm_80" in text
    assert ".visible .entry axpy(" in text
    assert "\0" not in text


def test_products_and_sums_round_one_by_one_unless_fast_math_is_asked_for(
    nvrtc: cuda.NvrtcLibrary,
) -> None:
    assert "fma.rn.f32" not in ptx(AXPY)
    assert "fma.rn" in ptx(AXPY, CudaOptions(fast_math=True))


def test_written_fused_multiply_add_stays_one(nvrtc: cuda.NvrtcLibrary) -> None:
    assert "fma.rn.f32" in ptx(AXPY.replace("a * x[i] + b", "fmaf(a, x[i], b)"))


def test_division_is_correctly_rounded_unless_fast_math_is_asked_for(
    nvrtc: cuda.NvrtcLibrary,
) -> None:
    quotient = AXPY.replace("a * x[i] + b", "a / x[i]")
    assert "div.rn.f32" in ptx(quotient)
    assert "div.approx.ftz.f32" in ptx(quotient, CudaOptions(fast_math=True))


def test_register_limit_is_kept(nvrtc: cuda.NvrtcLibrary) -> None:
    assert ".maxnreg" not in ptx(MANY_REGISTERS)
    unlimited = build(MANY_REGISTERS, "many", "sm_80")
    limited = build(MANY_REGISTERS, "many", "sm_80", CudaOptions(max_registers=32))
    assert limited != unlimited
    # The hardware's own limit limits nothing.
    assert build(MANY_REGISTERS, "many", "sm_80", CudaOptions(max_registers=255)) == unlimited


def test_line_info_is_added_on_request(nvrtc: cuda.NvrtcLibrary) -> None:
    assert ".loc" not in ptx(AXPY)
    assert ".loc" in ptx(AXPY, CudaOptions(line_info=True))


def test_equal_text_gives_equal_images(nvrtc: cuda.NvrtcLibrary) -> None:
    assert build(AXPY, "axpy", "sm_90a") == build(AXPY, "axpy", "sm_90a")


def test_failed_build_shows_log_and_numbered_source(nvrtc: cuda.NvrtcLibrary) -> None:
    broken = AXPY.replace("float b,", "flaot b,")
    with pytest.raises(CompileError) as caught:
        build(broken, "axpy", "sm_80")
    message = str(caught.value)
    assert message.startswith("build axpy: NVRTC ")
    assert re.search(r'axpy\.cu\(2\): error: identifier "flaot" is undefined', message)
    assert "    2  extern" in message
    assert "    4    if (i < n)" in message


def test_headers_are_not_to_be_had(nvrtc: cuda.NvrtcLibrary) -> None:
    with pytest.raises(CompileError, match="could not open source file"):
        build("#include <cuda_bf16.h>\n" + AXPY, "axpy", "sm_80")


def test_target_that_nvrtc_does_not_know_is_named_with_its_version(
    nvrtc: cuda.NvrtcLibrary,
) -> None:
    major, minor = nvrtc.version
    with pytest.raises(UnsupportedError) as caught:
        build(AXPY, "axpy", "sm_999")
    assert f"NVRTC {major}.{minor}" in str(caught.value)
    assert "'sm_999'" in str(caught.value)
    assert f"sm_{nvrtc.targets[-1]}" in str(caught.value)


@pytest.mark.parametrize("arch", ["90", "sm90", "sm_90 --foo", "", "ptx"])
def test_malformed_target_is_refused(arch: str) -> None:
    with pytest.raises(UnsupportedError, match="another form than 'sm_90a'"):
        build(AXPY, "axpy", arch)


def test_built_kernels_are_counted_and_failed_ones_are_not(nvrtc: cuda.NvrtcLibrary) -> None:
    before = build_cuda.built_count()
    build(AXPY, "axpy", "sm_80")
    build(AXPY, "axpy", "compute_80")
    with pytest.raises(CompileError):
        build("not a kernel", "axpy", "sm_80")
    assert build_cuda.built_count() == before + 2


def test_each_of_many_threads_gets_its_own_kernel(nvrtc: cuda.NvrtcLibrary) -> None:
    images: dict[int, bytes] = {}
    barrier = threading.Barrier(8)

    def work(index: int) -> None:
        barrier.wait()
        images[index] = build(AXPY.replace("axpy", f"axpy_{index}"), f"axpy_{index}", "sm_80")

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(f"axpy_{i}".encode() in images[i] for i in range(8))


def test_builds_run_side_by_side_and_hold_no_python_lock(tmp_path: Path) -> None:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("NO C COMPILER: this was NOT tested; install one (cc)")
    library = tmp_path / "libnvrtc.so.13"
    source = Path(__file__).with_name("waiting_nvrtc.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-w", "-o", library, source], check=True)
    waiting = ctypes.CDLL(str(library))
    results: list[tuple[bytes, str]] = []

    def work() -> None:
        options = ["--gpu-architecture=sm_90a"]
        results.append(_ext.nvrtc_compile("text", "k", options, str(library)))

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    # Reached only if Python runs on; both are inside at once only if neither waits for the other.
    while waiting.entered() < 2 and any(thread.is_alive() for thread in threads):
        pass
    waiting.proceed()
    for thread in threads:
        thread.join()
    assert results == [(b"abc", ""), (b"abc", "")]


@pytest.mark.parametrize(
    ("capability", "targets", "arch"),
    [
        ((8, 0), None, "sm_80"),
        ((8, 9), (75, 80, 89, 90), "sm_89"),
        ((9, 0), None, "sm_90a"),
        ((10, 0), (80, 90, 100), "sm_100a"),
        ((12, 1), None, "sm_121a"),
        ((10, 0), (75, 80, 90), "compute_90"),  # newer than NVRTC: the driver compiles further
        ((7, 0), (75, 80, 90), "sm_70"),  # older than NVRTC serves: the build says so
    ],
)
def test_arch_serves_the_device_best(
    capability: tuple[int, int], targets: tuple[int, ...] | None, arch: str
) -> None:
    assert pick_arch(capability, targets) == arch


def test_options_are_equal_by_value() -> None:
    assert CudaOptions(max_registers=64) == CudaOptions(max_registers=64)
    assert hash(CudaOptions()) == hash(build_cuda.DEFAULT_OPTIONS)
    assert CudaOptions(fast_math=True) != CudaOptions()


@pytest.mark.parametrize("option", ["--no-cache", "--minimal"])
def test_old_nvrtc_is_not_given_options_it_refuses(option: str) -> None:
    assert option not in CudaOptions().flags("sm_80", (12, 8))
    assert option in CudaOptions().flags("sm_80", (12, 9))
    assert option in CudaOptions().flags("sm_80", (13, 0))


# Where it is looked for. Each case runs in a process of its own, since a library stays open, and
# sees only the packages that it is given.

FIND = """
import json, sys
from fuser_direct import cuda
from fuser_direct.errors import UnsupportedError
try:
    found = cuda.find_nvrtc()
    words = open("/proc/self/maps").read().split()
    builtins = sorted({word for word in words if "nvrtc-builtins" in word})
    said = [found.path, found.found_via, builtins, "cuda.pathfinder" in sys.modules]
except UnsupportedError as error:
    said = str(error)
print(json.dumps(said))
"""
NEEDED = ("nanobind_backend", "numpy", "numpy.libs", "ml_dtypes")
# Of this process's environment; the last three belong to a sanitizer's run.
KEPT = ("PATH", "HOME", "LD_PRELOAD", "ASAN_OPTIONS", "UBSAN_OPTIONS")
Find = Callable[..., Any]


@pytest.fixture
def find(tmp_path: Path) -> Find:
    """Runs the search where only fuser_direct and the packages `wheels` can be imported."""

    def link(site: Path, package: str) -> None:
        spec = importlib.util.find_spec(package)
        for folder in (spec.submodule_search_locations or ()) if spec else ():
            (site / package).symlink_to(folder)

    def run(*wheels: str, **environment: str) -> Any:
        site = tmp_path / "site"
        (site / "fuser_direct").mkdir(parents=True)
        package = Path(cuda.__file__).parent
        # An editable install keeps the extension elsewhere.
        files = {file.name: file for file in (*package.iterdir(), Path(_ext.__file__))}
        for name, file in files.items():
            (site / "fuser_direct" / name).symlink_to(file)
        for name in (*NEEDED, *wheels):
            link(site, name)
        keep = {name: os.environ[name] for name in KEPT if name in os.environ}
        done = subprocess.run(
            [sys.executable, "-S", "-c", FIND],
            env={**keep, "PYTHONPATH": str(site), **environment},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


@pytest.fixture
def wheel(nvrtc: cuda.NvrtcLibrary) -> Path:
    """Path of this environment's NVRTC, which is a pip wheel's."""
    if "pip wheel" not in nvrtc.found_via:
        pytest.skip(f"this machine's NVRTC is no pip wheel but found via {nvrtc.found_via}")
    return Path(nvrtc.path)


@pytest.fixture
def toolkit(nvrtc: cuda.NvrtcLibrary, tmp_path: Path) -> Path:
    """A folder `lib` with copies of NVRTC and its builtins."""
    folder = tmp_path / "toolkit" / "lib"
    folder.mkdir(parents=True)
    for file in Path(nvrtc.path).resolve().parent.glob("libnvrtc*.so*"):
        shutil.copy(file, folder)
    return folder


def test_wheel_is_found_without_importing_pathfinder(find: Find, wheel: Path) -> None:
    path, via, builtins, imported_pathfinder = find("nvidia", "cuda")
    assert Path(path).resolve() == wheel.resolve()
    assert "pip wheel" in via
    assert [Path(b).resolve().parent for b in builtins] == [wheel.resolve().parent]
    assert not imported_pathfinder


def test_variable_beats_the_wheel_and_builtins_come_from_its_folder(
    find: Find, wheel: Path, toolkit: Path
) -> None:
    copy = toolkit / wheel.resolve().name
    path, via, builtins, _ = find("nvidia", **{cuda.NVRTC_VARIABLE: str(copy)})
    assert (path, via) == (str(copy), cuda.NVRTC_VARIABLE)
    assert [Path(b).parent for b in builtins] == [toolkit]


def test_stray_library_on_the_loader_path_is_passed_over(
    find: Find, wheel: Path, tmp_path: Path
) -> None:
    stray = tmp_path / "stray"
    stray.mkdir()
    for file in wheel.parent.glob("libnvrtc*.so*"):
        (stray / file.name).write_bytes(b"a library of another version")
    path, _, builtins, _ = find("nvidia", LD_LIBRARY_PATH=str(stray))
    assert Path(path).resolve() == wheel.resolve()
    assert [Path(b).resolve().parent for b in builtins] == [wheel.resolve().parent]


@pytest.mark.parametrize("variable", ["CUDA_PATH", "CUDA_HOME", "CONDA_PREFIX", "LD_LIBRARY_PATH"])
def test_toolkit_conda_and_module_tree_are_searched(
    find: Find, toolkit: Path, variable: str
) -> None:
    pytest.importorskip("cuda.pathfinder")
    root = toolkit if variable == "LD_LIBRARY_PATH" else toolkit.parent
    path, via, builtins, _ = find("cuda", **{variable: str(root)})
    assert Path(path).parent == toolkit
    assert "cuda.pathfinder" in via
    assert [Path(b).parent for b in builtins] == [toolkit]


def test_copy_inside_pytorch_is_found_and_pytorch_is_not_imported(
    find: Find, toolkit: Path, tmp_path: Path
) -> None:
    torch = tmp_path / "other" / "torch"
    torch.mkdir(parents=True)
    (torch / "__init__.py").write_text("raise RuntimeError('imported')")
    toolkit.rename(torch / "lib")
    site = f"{tmp_path / 'site'}{os.pathsep}{torch.parent}"
    path, via, builtins, _ = find(PYTHONPATH=site)
    assert Path(path).parent == torch / "lib"
    assert via == "PyTorch's own copy"
    assert [Path(b).parent for b in builtins] == [torch / "lib"]


def test_no_nvrtc_names_the_extra_to_install(find: Find) -> None:
    message = find()
    assert "pip install fuser_direct[cu13]" in message
    assert "fuser_direct[cu12]" in message
    assert cuda.NVRTC_VARIABLE in message


def test_variable_that_names_no_file_is_told(find: Find) -> None:
    message = find("nvidia", **{cuda.NVRTC_VARIABLE: "/nonexistent/libnvrtc.so"})
    assert "FUSER_DIRECT_NVRTC is '/nonexistent/libnvrtc.so', which is no file" in message


def test_library_that_is_no_nvrtc_is_told(find: Find, tmp_path: Path) -> None:
    broken = tmp_path / "libnvrtc.so.13"
    broken.write_bytes(b"no library")
    message = find(**{cuda.NVRTC_VARIABLE: str(broken)})
    assert f"can't open {broken}" in message


def test_report_lines_never_raise(nvrtc: cuda.NvrtcLibrary) -> None:
    assert nvrtc.path in cuda.nvrtc_text()
    assert isinstance(cuda.driver_text(), str)
    assert len(cuda.device_texts()) == _ext.cuda_status()["device_count"]
