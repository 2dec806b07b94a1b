"""`python -m fuser_direct cache` and `compile`: what they print, write and refuse."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import fuser_direct
from fuser_direct.__main__ import main
from fuser_direct.cache import current

_MODULE = """
from fuser_direct import DataType, FusionDefinition

def doubled(fd, x, factor):
    return fd.ops.mul(x, factor)

def ready():
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1], [True], DataType.Float)
        fd.add_output(fd.ops.neg(x))
    return fd

FD = ready()
nothing = 3
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FUSER_DIRECT_CACHE", "")
    monkeypatch.setenv("FUSER_DIRECT_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"definitions_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(_MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


def fill(count: int) -> None:
    disk = current()
    assert disk is not None
    for number in range(count):
        disk.put(bytes([number]) * 32, bytes(10_000))


def test_info_names_folder_bound_and_content(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(3)
    assert main(["cache", "info"]) == 0
    shown = capsys.readouterr().out
    assert str(folder) in shown
    assert "1.0 GiB" in shown
    assert "entries  3\n" in shown
    assert "29.5 KiB" in shown


def test_clear_and_prune_remove_entries(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fill(10)
    assert main(["cache", "prune", "--size", "60K"]) == 0
    assert capsys.readouterr().out.startswith("removed 5 entries")
    assert main(["cache", "clear"]) == 0
    assert capsys.readouterr().out.startswith("removed 5 entries")
    assert list(folder.rglob("*.entry")) == []


def test_cache_that_is_off_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FUSER_DIRECT_CACHE", "0")
    assert main(["cache", "info"]) == 0
    assert "switched off" in capsys.readouterr().out
    assert main(["cache", "clear"]) == 1
    assert "FUSER_DIRECT_CACHE=0" in capsys.readouterr().err


def test_function_of_inputs_is_compiled_and_runs(
    module: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "doubled.fuser"
    arguments = ["--input", "f32[8,16]", "--input", "2.5", "--target", "cpu", "-o", str(path)]
    assert main(["compile", f"{module}:doubled", *arguments]) == 0
    shown = capsys.readouterr()
    assert "1 kernels for" in shown.out
    assert "[1/1]" in shown.err
    x = np.arange(128, dtype=np.float32).reshape(8, 16)
    (y,) = fuser_direct.load(path)(x, 2.5)
    assert np.array_equal(y, x * np.float32(2.5))


@pytest.mark.parametrize("name", ["ready", "FD"])
def test_definition_or_its_maker_is_compiled(module: str, tmp_path: Path, name: str) -> None:
    path = tmp_path / "ready.fuser"
    arguments = ["--input", "f32[100]", "--target", "sm_90a", "--target", "cpu", "-o", str(path)]
    assert main(["compile", f"{module}:{name}", *arguments]) == 0
    x = np.ones(100, np.float32)
    assert np.array_equal(fuser_direct.load(path)(x)[0], -x)


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("nothing", "expected MODULE:NAME"),
        ("{module}:absent", "can't be imported"),
        ("no_such_module_here:f", "can't be imported"),
        ("{module}:nothing", "neither a function nor a FusionDefinition"),
    ],
)
def test_wrong_places_are_errors_without_a_traceback(
    module: str, capsys: pytest.CaptureFixture[str], place: str, message: str
) -> None:
    arguments = ["--input", "f32[8]", "--target", "cpu", "-o", "never"]
    assert main(["compile", place.format(module=module), *arguments]) == 1
    assert message in capsys.readouterr().err
    assert not Path("never").exists()


@pytest.mark.parametrize("inputs", [["f32[8]"], ["f32[8]", "2.5", "3"]], ids=["few", "many"])
def test_wrong_number_of_inputs_is_an_error_without_a_traceback(
    module: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], inputs: list[str]
) -> None:
    path = tmp_path / "never.fuser"
    arguments = [part for text in inputs for part in ("--input", text)]
    arguments += ["--target", "cpu", "-o", str(path)]
    assert main(["compile", f"{module}:doubled", *arguments]) == 1
    assert f"can't take {len(inputs)} inputs" in capsys.readouterr().err
    assert not path.exists()


_COMPILE = """
import resource, sys
from fuser_direct.__main__ import main
# Writing more is an error of the system's, as on a full disk.
resource.setrlimit(resource.RLIMIT_FSIZE, (500, 500))
sys.exit(main(["compile", *sys.argv[1:]]))
"""


def test_file_that_cannot_be_written_is_an_error_without_a_traceback(
    module: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [f"{module}:doubled", "--input", "f32[8]", "--input", "2.5", "--target", "cpu"]
    missing = str(tmp_path / "absent" / "a.fuser")
    assert main(["compile", *arguments, "-o", missing]) == 1
    assert f"no folder {tmp_path / 'absent'}" in capsys.readouterr().err

    path = tmp_path / "a.fuser"
    done = subprocess.run(
        [sys.executable, "-c", _COMPILE, *arguments, "-o", str(path)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1
    assert f"{path} can't be written: File too large" in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.glob("a.fuser*")) == []
