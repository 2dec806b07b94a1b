"""The disk cache of compiled kernels: content-addressed files that many processes share.

An entry is one file, named by its key and checked by itself: magic, key, and the SHA-256 of what
follows. It is written to a private file and renamed into place, so a reader sees all of it or
nothing; a damaged, foreign or missing entry is a miss, and no failure of the file system reaches
the caller. Nothing in an entry is unpickled or imported.

Environment:
    FUSER_DIRECT_CACHE       0 switches the cache off FUSER_DIRECT_CACHE_DIR   the folder; trusted
    as named. Default: fuser_direct in XDG_CACHE_HOME, else in ~/.cache,
                             which is used only if it belongs to this user and nobody else can write
                             to it, since an entry is code that will run
    FUSER_DIRECT_CACHE_SIZE  most bytes that the entries may take, such as 500M or 2G; default 1G.
    Beyond it the entries
                             that were not used for longest are removed
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import re
import stat
import struct
import threading
import time
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING

from fuser_direct.errors import InputError
from fuser_direct.records import dataclass

if TYPE_CHECKING:
    from fuser_direct.cache_folder import Usage

DEFAULT_SIZE_BYTES = 1 << 30
_MAGIC = b"fuser_direct entry 1\n"
SUFFIX = ".entry"
_HEADER = struct.Struct("<32s32s")
_BINARY = struct.Struct("<III")
# A hit renews an entry's time of last use when it is older than this.
_TOUCH_AFTER_S = 3600.0
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


@dataclass(frozen=True, slots=True)
class Binary:
    """What is kept of a compiled kernel: generated text, machine code (cubin, PTX or object file),
    and the dynamic shared memory in bytes that its launches must ask for.
    """

    source: str
    image: bytes
    shared_bytes: int = 0

    def to_bytes(self) -> bytes:
        """For `from_bytes`."""
        source = self.source.encode()
        head = _BINARY.pack(len(source), len(self.image), self.shared_bytes)
        return head + source + self.image

    @classmethod
    def from_bytes(cls, data: bytes) -> Binary | None:
        """The kernel that `to_bytes` wrote, or None if that isn't what `data` is."""
        try:
            source_bytes, image_bytes, shared_bytes = _BINARY.unpack_from(data)
            start = _BINARY.size + source_bytes
            if len(data) != start + image_bytes:
                return None
            return cls(data[_BINARY.size : start].decode(), data[start:], shared_bytes)
        except (struct.error, UnicodeDecodeError):
            return None


class DiskCache:
    """Entries in one folder. Safe under threads and processes; no method raises for what the file
    system does.
    """

    def __init__(self, folder: str, limit_bytes: int, is_default: bool) -> None:
        """is_default: the folder was not named by the user, so it must be private to be used."""
        self.folder = folder
        self.limit_bytes = limit_bytes
        self._is_default = is_default
        self._lock = threading.Lock()
        self._warned = False
        self._usable: bool | None = None
        # Bytes written since the folder was last measured; None before the first entry.
        self._written: int | None = None

    # --- entries ---

    def get(self, key: bytes) -> bytes | None:
        """What was put under a key of 32 bytes, or None."""
        if not self._is_usable():
            return None
        path = self._path(key)
        try:
            with open(path, "rb") as file:
                data = file.read()
                age_s = time.time() - os.fstat(file.fileno()).st_mtime
        except OSError:
            return None
        value = _checked(data, key)
        if value is not None and age_s > _TOUCH_AFTER_S:
            # If this fails, the entry only seems unused for longer.
            with contextlib.suppress(OSError):
                os.utime(path)
        return value

    def put(self, key: bytes, value: bytes) -> None:
        """Keep `value` under a key of 32 bytes; says once if it can't be kept."""
        if not self._is_usable(create=True):
            return
        try:
            size = self._write(key, value)
        except OSError as error:
            self._warn(f"can't be written ({error.strerror or error})")
        else:
            self._account(size)

    def _path(self, key: bytes) -> str:
        name = key.hex()
        return os.path.join(self.folder, name[:2], name + SUFFIX)

    def _write(self, key: bytes, value: bytes) -> int:
        path = self._path(key)
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        # The thread and time take part: a child of fork has its parent's random state.
        private = f"{path}.{os.getpid()}.{threading.get_ident()}.{time.monotonic_ns()}.tmp"
        data = _MAGIC + _HEADER.pack(key, hashlib.sha256(value).digest()) + value
        descriptor = os.open(private, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with open(descriptor, "wb") as file:
                file.write(data)
            os.replace(private, path)
        except BaseException:
            # Another process was faster, or it stays.
            with contextlib.suppress(OSError):
                os.unlink(private)
            raise
        return len(data)

    # --- the folder ---

    def _is_usable(self, create: bool = False) -> bool:
        """Whether entries of the folder may be run; False, said once, for a default folder that
        others may alter.
        """
        if self._usable is None or (create and self._usable and not os.path.isdir(self.folder)):
            with self._lock:
                self._usable = self._check_folder(create)
        return bool(self._usable)

    def _check_folder(self, create: bool) -> bool | None:
        try:
            if create:
                os.makedirs(self.folder, mode=0o700, exist_ok=True)
            found = os.stat(self.folder)
        except FileNotFoundError:
            return None  # nothing to read yet; `put` makes the folder
        except OSError as error:
            self._warn(f"can't be used ({error.strerror or error})")
            return False
        if not stat.S_ISDIR(found.st_mode):
            self._warn("is no folder")
            return False
        if self._is_default and found.st_uid != os.geteuid():
            self._warn(f"belongs to user {found.st_uid}, and this is user {os.geteuid()}")
            return False
        if self._is_default and found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            self._warn("can be written by other users")
            return False
        return True

    def _warn(self, what: str) -> None:
        if not self._warned:
            self._warned = True
            warnings.warn(
                f"fuser_direct: the kernel cache {self.folder} {what}; compiled kernels stay in "
                f"memory. Set "
                "FUSER_DIRECT_CACHE_DIR to a folder of your own, or FUSER_DIRECT_CACHE=0 to have "
                "none",
                RuntimeWarning,
                stacklevel=2,
            )

    # --- size ---

    def usage(self) -> Usage:
        """How many entries there are, and their bytes."""
        from fuser_direct import cache_folder

        return cache_folder.usage(self.folder)

    def prune(self, limit_bytes: int | None = None) -> Usage:
        """Remove the entries unused for longest until the rest takes at most `limit_bytes`
        (default: the cache's own limit). Returns what was removed.
        """
        from fuser_direct import cache_folder

        limit = self.limit_bytes if limit_bytes is None else limit_bytes
        return cache_folder.prune(self.folder, limit)

    def clear(self) -> Usage:
        """Remove all entries. Returns what was removed."""
        from fuser_direct import cache_folder

        return cache_folder.clear(self.folder)

    def _account(self, written_bytes: int) -> None:
        """Evict when enough has been written to pass the limit, and at a process's first entry."""
        from fuser_direct import cache_folder

        with self._lock:
            is_first = self._written is None
            self._written = (self._written or 0) + written_bytes
            is_due = self._written > self.limit_bytes // 64
            if is_due:
                self._written = 0
        if is_due or (is_first and not cache_folder.measured_lately(self.folder)):
            self.prune()


def _checked(data: bytes, key: bytes) -> bytes | None:
    """The value in an entry's bytes, or None if they are damaged or of another key."""
    start = len(_MAGIC) + _HEADER.size
    if len(data) < start or not data.startswith(_MAGIC):
        return None
    its_key, checksum = _HEADER.unpack_from(data, len(_MAGIC))
    value = data[start:]
    if its_key != key or hashlib.sha256(value).digest() != checksum:
        return None
    return value


# --- which cache ---


def current() -> DiskCache | None:
    """The cache that the environment names, or None if it is switched off.

    Raises InputError for a FUSER_DIRECT_CACHE_SIZE that is no size.
    """
    read = os.environ.get
    if read("FUSER_DIRECT_CACHE") == "0":
        return None
    size = read("FUSER_DIRECT_CACHE_SIZE", "")
    return _opened(read("FUSER_DIRECT_CACHE_DIR"), read("XDG_CACHE_HOME"), read("HOME"), size)


@functools.lru_cache(maxsize=16)
def _opened(named: str | None, xdg: str | None, home: str | None, size: str) -> DiskCache:
    limit = DEFAULT_SIZE_BYTES if not size else size_in_bytes(size, "FUSER_DIRECT_CACHE_SIZE")
    if named:
        return DiskCache(os.path.abspath(os.path.expanduser(named)), limit, is_default=False)
    # The XDG specification has relative paths ignored.
    parent = xdg if xdg and os.path.isabs(xdg) else os.path.expanduser("~/.cache")
    return DiskCache(os.path.join(parent, "fuser_direct"), limit, is_default=True)


def size_in_bytes(text: str, what: str) -> int:
    """`500M` -> 524288000. Raises InputError in the name of `what`."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if match is None:
        raise InputError(f"{what}: expected a size such as 500M or 2G, got {text!r}")
    return int(float(match[1]) * _UNITS[match[2].upper()])


def remembered(what: str, given: str, compute: Callable[[], str]) -> str:
    """`compute()`, a text that depends on `given` alone and is slow to find, kept across processes.

    what: name of the fact.
    """
    from fuser_direct.ir.serialize import digest

    disk = current()
    key = digest(what, given)
    known = disk.get(key) if disk is not None else None
    if known is not None:
        return known.decode()
    found = compute()
    if disk is not None:
        disk.put(key, found.encode())
    return found
