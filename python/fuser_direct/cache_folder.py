"""A cache's folder as a whole: what it holds, and what is removed from it. See `cache`."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterator

from fuser_direct.cache import SUFFIX
from fuser_direct.records import dataclass

_KEY_NAME = re.compile(r"[0-9a-f]{64}" + re.escape(SUFFIX))
# A private file this old was left by a writer that was killed.
_ABANDONED_AFTER_S = 3600.0
# Another process measured the folder less than this ago, so a new one need not.
_MEASURED_WITHIN_S = 60.0
# After eviction this share of the limit is in use, so that the next entry doesn't evict again.
_KEEP_SHARE = 0.9


@dataclass(frozen=True, slots=True)
class Usage:
    """Entries of a folder, and their bytes."""

    entries: int
    size_bytes: int


def usage(folder: str) -> Usage:
    """How many entries there are, and their bytes."""
    sizes = [size for _, size, _ in _entries(folder)]
    return Usage(len(sizes), sum(sizes))


def prune(folder: str, limit_bytes: int) -> Usage:
    """Remove the entries unused for longest until the rest takes at most `limit_bytes`. Returns
    what was removed.
    """
    entries = sorted(_entries(folder))
    total = sum(size for _, size, _ in entries)
    removed = freed = 0
    if total > limit_bytes:
        for _, size, path in entries:
            if total - freed <= limit_bytes * _KEEP_SHARE:
                break
            _unlink(path)
            removed += 1
            freed += size
    return Usage(removed, freed)


def clear(folder: str) -> Usage:
    """Remove all entries. Returns what was removed."""
    removed = freed = 0
    for _, size, path in _entries(folder):
        _unlink(path)
        removed += 1
        freed += size
    return Usage(removed, freed)


def measured_lately(folder: str) -> bool:
    """Whether some process measured the folder just now; if not, this one says that it does."""
    marker = os.path.join(folder, "measured")
    with contextlib.suppress(OSError):
        if time.time() - os.stat(marker).st_mtime < _MEASURED_WITHIN_S:
            return True
    with contextlib.suppress(OSError), open(marker, "wb"):
        os.utime(marker)
    return False


def _entries(folder: str) -> Iterator[tuple[float, int, str]]:
    """(time of last use, bytes, path) of every entry; abandoned private files are removed on the
    way.
    """
    for shard in _listed(folder):
        if len(shard.name) != 2:
            continue
        for file in _listed(shard.path):
            try:
                found = file.stat(follow_symlinks=False)
            except OSError:
                continue
            if _KEY_NAME.fullmatch(file.name):
                yield found.st_mtime, found.st_size, file.path
            elif file.name.endswith(".tmp") and time.time() - found.st_mtime > _ABANDONED_AFTER_S:
                _unlink(file.path)


def _listed(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError:
        return []


def _unlink(path: str) -> None:
    # Another process was faster, or it stays.
    with contextlib.suppress(OSError):
        os.unlink(path)
