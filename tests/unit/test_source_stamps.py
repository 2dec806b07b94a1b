"""`_ext.source_stamps`: every change of a source shows, and nothing else does."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from fuser_direct import _ext


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A folder with sources at two levels, and what is no source."""
    for name in ("b.py", "a.py", "lib.so", "sub/c.cuh", "sub/deep/d.py", "notes.txt"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__" / "a.py").write_text("")
    return tmp_path


def test_lines_name_path_size_and_time_in_order(package: Path) -> None:
    paths = sorted(
        path for path in package.rglob("*") if path.suffix in (".py", ".so", ".cuh")
        if "__pycache__" not in path.parts
    )  # fmt: skip
    stats = [path.stat() for path in paths]
    expected = [
        f"{path} {found.st_size} {found.st_mtime_ns}"
        for path, found in zip(paths, stats, strict=True)
    ]
    assert _ext.source_stamps(str(package)).splitlines() == sorted(expected)


def _rewrite_in_place(package: Path) -> None:
    with open(package / "sub/deep/d.py", "r+") as file:
        file.write("x")
    os.utime(package / "sub/deep/d.py", ns=(1, 1))


@pytest.mark.parametrize(
    "change",
    [
        _rewrite_in_place,
        lambda package: (package / "a.py").write_text("longer than before"),
        lambda package: (package / "sub/e.py").write_text(""),
        lambda package: (package / "sub/c.cuh").unlink(),
        lambda package: (package / "a.py").rename(package / "z.py"),
        lambda package: (package / "sub/deep").rename(package / "sub/other"),
    ],
)
def test_changes_show(package: Path, change: Callable[[Path], object]) -> None:
    before = _ext.source_stamps(str(package))
    change(package)
    assert _ext.source_stamps(str(package)) != before


def test_other_files_and_missing_folders_do_not_matter(package: Path) -> None:
    before = _ext.source_stamps(str(package))
    (package / "notes.txt").write_text("changed")
    (package / "__pycache__" / "new.py").write_text("")
    os.symlink(package / "gone.py", package / "dangling.py")
    assert _ext.source_stamps(str(package)) == before
    assert _ext.source_stamps(str(package / "nowhere")) == ""


def test_linked_sources_and_folders_are_seen(
    package: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    outside = tmp_path_factory.mktemp("outside")
    (outside / "f.py").write_text("1")
    os.symlink(outside, package / "linked")
    before = _ext.source_stamps(str(package))
    assert f"{package}/linked/f.py " in before
    (outside / "f.py").write_text("12")
    assert _ext.source_stamps(str(package)) != before
