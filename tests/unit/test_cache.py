"""The disk cache: what it must survive, refuse and forget."""

from __future__ import annotations

import errno
import os
import stat
import threading
import time
import warnings
from pathlib import Path

import pytest

from fuser_direct import cache, cache_folder
from fuser_direct.cache import Binary, DiskCache
from fuser_direct.errors import InputError

_KEY = bytes(range(32))
_OTHER = bytes(32)
_NOBODY = 65534


def made(folder: Path, limit: int = 1 << 20, is_default: bool = False) -> DiskCache:
    return DiskCache(str(folder), limit, is_default)


def entry(folder: Path) -> Path:
    (path,) = folder.rglob("*.entry")
    return path


def key_of(number: int) -> bytes:
    return number.to_bytes(32, "big")


def test_value_comes_back_from_another_process_s_cache(tmp_path: Path) -> None:
    made(tmp_path / "c").put(_KEY, b"value")
    assert made(tmp_path / "c").get(_KEY) == b"value"
    assert made(tmp_path / "c").get(_OTHER) is None


def test_folder_and_entries_are_private(tmp_path: Path) -> None:
    folder = tmp_path / "c"
    made(folder).put(_KEY, b"value")
    for path in (folder, *(p for p in folder.rglob("*") if p.suffix == ".entry" or p.is_dir())):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path


def test_every_truncation_is_a_miss(tmp_path: Path) -> None:
    disk = made(tmp_path)
    disk.put(_KEY, b"some value")
    path = entry(tmp_path)
    data = path.read_bytes()
    for size in range(len(data)):
        path.write_bytes(data[:size])
        assert disk.get(_KEY) is None, size


def test_every_flipped_bit_is_a_miss(tmp_path: Path) -> None:
    disk = made(tmp_path)
    disk.put(_KEY, b"some value")
    path = entry(tmp_path)
    data = path.read_bytes()
    for bit in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(bytes(damaged))
        assert disk.get(_KEY) is None, bit
    disk.put(_KEY, b"again")
    assert disk.get(_KEY) == b"again"


def test_entry_under_another_key_s_name_is_a_miss(tmp_path: Path) -> None:
    disk = made(tmp_path)
    disk.put(_KEY, b"value")
    moved = Path(disk._path(_OTHER))
    moved.parent.mkdir(exist_ok=True)
    entry(tmp_path).rename(moved)
    assert disk.get(_OTHER) is None


def test_entry_that_is_a_folder_is_a_miss(tmp_path: Path) -> None:
    disk = made(tmp_path)
    Path(disk._path(_KEY)).mkdir(parents=True)
    assert disk.get(_KEY) is None
    with pytest.warns(RuntimeWarning, match="can't be written"):
        disk.put(_KEY, b"value")


def test_killed_writer_s_half_file_is_never_read_and_goes_away(tmp_path: Path) -> None:
    disk = made(tmp_path)
    disk.put(_KEY, b"value")
    half = entry(tmp_path).with_name(entry(tmp_path).name + ".4242.1.1.tmp")
    half.write_bytes(b"fuser_di")
    assert disk.usage().entries == 1
    assert half.exists(), "its writer may be alive"
    long_ago = time.time() - 7200
    os.utime(half, (long_ago, long_ago))
    disk.usage()
    assert not half.exists()


def test_full_disk_is_said_once_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = made(tmp_path)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.warns(RuntimeWarning, match="No space left on device"):
        disk.put(_KEY, b"value")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        disk.put(_OTHER, b"value")
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == []
    assert disk.get(_KEY) is None


def test_stale_network_folder_is_a_miss_and_said_once_when_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(tmp_path).put(_KEY, b"value")
    stale = OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    def refuse(*_: object, **__: object) -> None:
        raise stale

    disk = made(tmp_path)
    with monkeypatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("error")
        patch.setattr("builtins.open", refuse)
        assert disk.get(_KEY) is None
    with monkeypatch.context() as patch:
        # The file's name is taken over while it is closed, as where another client renamed first.
        patch.setattr(os, "replace", refuse)
        with pytest.warns(RuntimeWarning, match="compiled kernels stay in memory"):
            disk.put(_OTHER, b"value")
    assert list(tmp_path.rglob("*.tmp")) == []
    assert (disk.get(_KEY), disk.get(_OTHER)) == (b"value", None)


def test_folder_below_a_file_is_said_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    disk = made(tmp_path / "file" / "cache")
    with pytest.warns(RuntimeWarning, match="compiled kernels stay in memory"):
        disk.get(_KEY)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        disk.put(_KEY, b"value")
        assert disk.get(_KEY) is None


def test_default_folder_that_others_may_write_is_not_used(tmp_path: Path) -> None:
    folder = tmp_path / "c"
    made(folder).put(_KEY, b"planted")
    folder.chmod(0o777)
    disk = made(folder, is_default=True)
    with pytest.warns(RuntimeWarning, match="can be written by other users"):
        assert disk.get(_KEY) is None
    disk.put(_OTHER, b"value")
    assert disk.usage().entries == 1
    # Named by the user, it is trusted.
    assert made(folder).get(_KEY) == b"planted"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_default_folder_of_another_user_is_not_used(tmp_path: Path) -> None:
    folder = tmp_path / "c"
    made(folder).put(_KEY, b"planted")
    os.chown(folder, _NOBODY, _NOBODY)
    with pytest.warns(RuntimeWarning, match=f"belongs to user {_NOBODY}, and this is user 0"):
        assert made(folder, is_default=True).get(_KEY) is None


def test_least_recently_used_entries_go_first(tmp_path: Path) -> None:
    disk = made(tmp_path, limit=1 << 30)
    now = time.time()
    for number in range(10):
        disk.put(key_of(number), bytes(1000))
        os.utime(disk._path(key_of(number)), (now - 10000 + number, now - 10000 + number))
    assert disk.get(key_of(0)) is not None, "renews its time of use"
    size = disk.usage().size_bytes // 10
    removed = disk.prune(6 * size)
    kept = [number for number in range(10) if disk.get(key_of(number)) is not None]
    assert kept == [0, 6, 7, 8, 9]
    assert removed.entries == 5
    assert disk.usage().size_bytes <= 6 * size


def test_hit_renews_the_time_of_use_at_most_hourly(tmp_path: Path) -> None:
    disk = made(tmp_path)
    disk.put(_KEY, b"value")
    path = entry(tmp_path)
    for age_s, is_renewed in ((600, False), (5000, True)):
        then = time.time() - age_s
        os.utime(path, (then, then))
        disk.get(_KEY)
        assert (path.stat().st_mtime > then + 1) == is_renewed


def test_size_stays_bounded_while_writing(tmp_path: Path) -> None:
    disk = made(tmp_path, limit=50_000)
    for number in range(200):
        disk.put(key_of(number), bytes(2000))
        assert disk.usage().size_bytes <= 50_000
    assert disk.usage().entries >= 15
    assert disk.get(key_of(199)) is not None


def test_bound_holds_over_many_short_processes(tmp_path: Path) -> None:
    for number in range(100):
        # A new object has written nothing yet, as a new process.
        disk = made(tmp_path, limit=20_000)
        disk.put(key_of(number), bytes(1000))
    assert disk.usage().size_bytes <= 20_000 + 2 * 1100


def test_clear_removes_everything(tmp_path: Path) -> None:
    disk = made(tmp_path)
    for number in range(5):
        disk.put(key_of(number << 248), b"value")
    assert disk.clear().entries == 5
    assert disk.usage() == cache_folder.Usage(0, 0)


def test_threads_that_write_and_evict_together_raise_nothing(tmp_path: Path) -> None:
    disk = made(tmp_path, limit=10_000)
    wrong: list[object] = []

    def work(seed: int) -> None:
        for step in range(60):
            number = (seed * 7 + step) % 20
            disk.put(key_of(number), bytes([number]) * 900)
            found = disk.get(key_of(number))
            if found not in (None, bytes([number]) * 900):
                wrong.append(found)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == []


# --- which folder ---


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in ("FUSER_DIRECT_CACHE", "FUSER_DIRECT_CACHE_DIR", "FUSER_DIRECT_CACHE_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/home/somebody")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    return monkeypatch


def folder() -> str:
    disk = cache.current()
    assert disk is not None
    return disk.folder


def test_folder_is_per_user_under_home(environment: pytest.MonkeyPatch) -> None:
    assert folder() == "/home/somebody/.cache/fuser_direct"


def test_folder_follows_xdg_if_absolute(environment: pytest.MonkeyPatch) -> None:
    environment.setenv("XDG_CACHE_HOME", "/var/xdg")
    assert folder() == "/var/xdg/fuser_direct"
    environment.setenv("XDG_CACHE_HOME", "relative")
    assert folder() == "/home/somebody/.cache/fuser_direct"


def test_named_folder_comes_first(environment: pytest.MonkeyPatch) -> None:
    environment.setenv("XDG_CACHE_HOME", "/var/xdg")
    environment.setenv("FUSER_DIRECT_CACHE_DIR", "/data/kernels")
    assert folder() == "/data/kernels"


def test_cache_can_be_switched_off(environment: pytest.MonkeyPatch) -> None:
    environment.setenv("FUSER_DIRECT_CACHE", "0")
    assert cache.current() is None


def test_size_that_is_none_is_refused_by_name(environment: pytest.MonkeyPatch) -> None:
    environment.setenv("FUSER_DIRECT_CACHE_SIZE", "plenty")
    with pytest.raises(InputError, match="FUSER_DIRECT_CACHE_SIZE: expected a size such as 500M"):
        cache.current()


@pytest.mark.parametrize(
    ("text", "size"),
    [("0", 0), ("4096", 4096), ("500M", 500 << 20), ("1.5G", 3 << 29), ("2 GiB", 2 << 30)],
)
def test_sizes_are_read(text: str, size: int) -> None:
    assert cache.size_in_bytes(text, "size") == size


# --- kernels as bytes ---


def test_binary_survives_and_its_truncations_do_not() -> None:
    binary = Binary("söurce", b"\x7fELF\0image", 49152)
    data = binary.to_bytes()
    assert Binary.from_bytes(data) == binary
    for size in range(len(data)):
        assert Binary.from_bytes(data[:size]) is None
    assert Binary.from_bytes(data + b"x") is None


def test_fact_is_computed_once(environment: pytest.MonkeyPatch, tmp_path: Path) -> None:
    environment.setenv("FUSER_DIRECT_CACHE_DIR", str(tmp_path))
    asked = []

    def compute() -> str:
        asked.append(1)
        return "found"

    assert [cache.remembered("fact", "given", compute) for _ in range(3)] == ["found"] * 3
    assert len(asked) == 1
    cache.remembered("fact", "other", compute)
    assert len(asked) == 2
