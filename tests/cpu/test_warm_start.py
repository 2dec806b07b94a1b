"""Kernels on disk across processes: found by the next one, shared by many at once, never in the
way.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

_NOBODY = 65534

# Runs eight fusions, checks them, and reports what was compiled, found and loaded. Takes statements
# to run first.
_SCRIPT = """
import json, os, sys, warnings
said = []
warnings.showwarning = lambda message, *rest, **named: said.append(str(message))
import numpy as np
import fuser_direct
from fuser_direct import FusionDefinition
from fuser_direct.enums import DataType

PLANNERS = (
    "fuser_direct.compiler.segment", "fuser_direct.compiler.axes", "fuser_direct.compiler.program",
    "fuser_direct.lowering", "fuser_direct.schedulers.c", "fuser_direct.ops.reference",
)

def fusions():
    ops = {"exp": np.exp, "sin": np.sin, "abs": np.abs, "neg": np.negative}
    for name, oracle in ops.items():
        for is_sum in (False, True):
            yield name, oracle, is_sum

def run_all():
    x = np.random.default_rng(0).standard_normal((16, 100)).astype(np.float32)
    for name, oracle, is_sum in fusions():
        with FusionDefinition() as fd:
            t = fd.define_tensor([-1, -1], [True, True], DataType.Float)
            y = getattr(fd.ops, name)(t)
            y = fd.ops.add(y, -0.0)
            fd.add_output(fd.ops.sum(y, [1]) if is_sum else y)
        want = oracle(x.astype(np.float64))
        got = fd.execute([x])[0]
        np.testing.assert_allclose(got, want.sum(1) if is_sum else want, rtol=2e-5, atol=2e-5)

for statement in sys.argv[1:]:
    exec(statement)
run_all()
from fuser_direct.executor import counters
print(json.dumps({
    **counters(),
    "said": said,
    "llvmlite": "llvmlite" in sys.modules,
    "generators": "fuser_direct.codegen.llvm" in sys.modules,
    "planners": [m for m in sys.modules if m.startswith(PLANNERS)],
}))
"""


def run(folder: Path | None, *statements: str, **environment: str) -> dict[str, Any]:
    """What a fresh process reports."""
    variables = {k: v for k, v in os.environ.items() if not k.startswith("FUSER_DIRECT_CACHE")}
    if folder is not None:
        variables["FUSER_DIRECT_CACHE_DIR"] = str(folder)
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT, *statements],
        env={**variables, **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return report


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that a process has filled."""
    folder = tmp_path_factory.mktemp("warm")
    report = run(folder)
    assert report["kernels_compiled"] == 8
    assert report["disk_hits"] == 0
    return folder


def entries(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.entry"))


def test_next_process_compiles_nothing_and_loads_no_compiler(warm: Path) -> None:
    report = run(warm)
    assert report["kernels_compiled"] == 0
    assert report["disk_hits"] == 8
    assert not report["llvmlite"]
    assert not report["generators"]
    assert report["planners"] == []
    assert report["said"] == []


@pytest.mark.parametrize("seed", ["1", "2", "3"])
def test_hash_randomisation_makes_no_other_key(warm: Path, seed: str) -> None:
    assert run(warm, PYTHONHASHSEED=seed)["kernels_compiled"] == 0


@pytest.mark.parametrize(
    "change",
    [
        "from fuser_direct.compiler import toolchain; toolchain.llvm = lambda: '0.46.0'",
        "from fuser_direct.compiler import toolchain; "
        "toolchain.generators = toolchain.sources = lambda: '9.9.9'",
        "from fuser_direct.compiler import toolchain; import dataclasses; "
        "host = toolchain.host_cpu(); toolchain.cpu_description = lambda: ''; "
        "toolchain.host_cpu = lambda: dataclasses.replace(host, vector_bits=128)",
        "from fuser_direct.compiler import toolchain; import dataclasses; "
        "host = toolchain.host_cpu(); toolchain.cpu_description = lambda: ''; "
        "toolchain.host_cpu = lambda: dataclasses.replace(host, features=host.features + "
        "',-sse4a')",
    ],
    ids=["llvm", "version", "vector width", "features"],
)
def test_other_compiler_version_or_processor_misses(warm: Path, change: str) -> None:
    assert run(warm, change)["kernels_compiled"] == 8


def test_processor_is_in_the_key_of_a_program(warm: Path, tmp_path: Path) -> None:
    folder = tmp_path / "other"
    shutil.copytree(warm, folder)
    # The same for LLVM, so kernels are found; but the programs of another machine are not.
    other = (
        "from fuser_direct.compiler import toolchain; text = toolchain.cpu_description() + "
        "'\\nmodel: other'; toolchain.cpu_description = lambda: text"
    )
    report = run(folder, other)
    assert report["kernels_compiled"] == 0
    assert report["planners"] != []
    assert run(folder, other)["planners"] == []


def test_version_of_the_package_and_its_sources_are_in_the_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from fuser_direct.compiler import toolchain

    before = toolchain.generators.__wrapped__()
    monkeypatch.setattr(toolchain, "__version__", "9.9.9")
    assert toolchain.generators.__wrapped__() != before
    monkeypatch.undo()
    monkeypatch.setattr(toolchain, "_GENERATORS", (*toolchain._GENERATORS, "errors.py"))
    assert toolchain.generators.__wrapped__() != before


def test_damaged_entries_are_compiled_again_and_replaced(warm: Path, tmp_path: Path) -> None:
    run(tmp_path)
    for number, path in enumerate(entries(tmp_path)):
        data = bytearray(path.read_bytes())
        if number % 3 == 0:
            data[len(data) // 2] ^= 1
        elif number % 3 == 1:
            del data[len(data) // 2 :]
        else:
            data.clear()
        path.write_bytes(bytes(data))
    report = run(tmp_path)
    assert report["kernels_compiled"] == 8
    assert report["said"] == []
    assert run(tmp_path)["kernels_compiled"] == 0


def test_many_processes_share_one_fresh_folder(tmp_path: Path) -> None:
    # 32 at once, as the ranks of a job that starts.
    with ThreadPoolExecutor(32) as pool:
        reports = list(pool.map(lambda _: run(tmp_path), range(32)))
    for report in reports:
        assert report["kernels_compiled"] + report["disk_hits"] == 8
        assert report["said"] == []
    assert list(tmp_path.rglob("*.tmp")) == []
    assert run(tmp_path)["kernels_compiled"] == 0


def test_small_bound_holds_and_results_stay_right(tmp_path: Path) -> None:
    report = run(tmp_path, FUSER_DIRECT_CACHE_SIZE="20K")
    assert report["kernels_compiled"] == 8
    assert 0 < sum(path.stat().st_size for path in entries(tmp_path)) <= 20 << 10


def test_cache_switched_off_writes_nothing(tmp_path: Path) -> None:
    report = run(tmp_path, FUSER_DIRECT_CACHE="0")
    assert report["kernels_compiled"] == 8
    assert list(tmp_path.iterdir()) == []


# Everything is loaded as the caller first: the interpreter's own files need not be readable
# afterwards.
_AS_NOBODY = (
    "os.environ['FUSER_DIRECT_CACHE'] = '0'; run_all(); del os.environ['FUSER_DIRECT_CACHE']; "
    "from fuser_direct.compiler import kernels; kernels.STORE._kernels.clear(); "
    "from fuser_direct.compiler import pipeline; pipeline._compilers.clear(); "
    "from fuser_direct.compiler import toolchain; toolchain.generators(); toolchain.sources(); "
    f"os.geteuid() == 0 and (os.setegid({_NOBODY}), os.seteuid({_NOBODY}))"
)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that any user may enter, which pytest's own are not."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        yield Path(name)


def test_folder_that_may_not_be_written_is_said_once(open_folder: Path) -> None:
    folder = open_folder / "readonly"
    folder.mkdir()
    folder.chmod(0o555)
    report = run(folder, _AS_NOBODY)
    assert report["kernels_compiled"] == 16
    (said,) = report["said"]
    assert "compiled kernels stay in memory" in said
    assert str(folder) in said


def test_read_only_folder_of_kernels_is_read(warm: Path, open_folder: Path) -> None:
    folder = open_folder / "shipped"
    shutil.copytree(warm, folder)
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    report = run(folder, _AS_NOBODY)
    assert report["disk_hits"] == 8
    assert report["said"] == []
    # So that the fixture can remove it without being root.
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755)


def test_home_that_may_not_be_written_is_said_once() -> None:
    report = run(None, _AS_NOBODY, HOME="/", XDG_CACHE_HOME="")
    assert report["kernels_compiled"] == 16
    (said,) = report["said"]
    assert "/.cache/fuser_direct" in said


def test_disk_that_takes_no_entry_is_said_once(tmp_path: Path) -> None:
    # The system refuses the rest of a file, as where a disk is full.
    full = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))"
    report = run(tmp_path, full)
    assert report["kernels_compiled"] == 8
    (said,) = report["said"]
    assert "File too large" in said
    assert "compiled kernels stay in memory" in said
    assert entries(tmp_path) == []
    after = run(tmp_path)
    assert after["kernels_compiled"] == 8
    assert after["said"] == []
    assert run(tmp_path)["disk_hits"] == 8


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_default_folder_of_another_user_is_left_alone(warm: Path, tmp_path: Path) -> None:
    folder = tmp_path / "fuser_direct"
    shutil.copytree(warm, folder)
    os.chown(folder, _NOBODY, _NOBODY)
    report = run(None, XDG_CACHE_HOME=str(tmp_path))
    assert report["kernels_compiled"] == 8
    (said,) = report["said"]
    assert f"belongs to user {_NOBODY}" in said
    assert len(entries(folder)) == len(entries(warm))


_GPU_KERNELS = """
import sys
import fuser_direct
from fuser_direct import FusionDefinition, TensorSpec
from fuser_direct.enums import DataType
with FusionDefinition() as fd:
    x = fd.define_tensor([-1, -1], [True, True], DataType.Float)
    fd.add_output(fd.ops.sum(fd.ops.exp(x), [1]))
made = fuser_direct.compile(fd, [TensorSpec((128, 512))], ["sm_90a"])
print(made.num_kernels, "libnvrtc" in open("/proc/self/maps").read())
"""


def test_cached_gpu_kernels_need_no_nvrtc(tmp_path: Path) -> None:
    environment = {**os.environ, "FUSER_DIRECT_CACHE": "", "FUSER_DIRECT_CACHE_DIR": str(tmp_path)}
    seen = [
        subprocess.run(
            [sys.executable, "-c", _GPU_KERNELS],
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=True,
        ).stdout.split()
        for _ in range(2)
    ]
    assert seen == [["1", "True"], ["1", "False"]]
