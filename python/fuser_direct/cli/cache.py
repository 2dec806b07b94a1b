"""`python -m fuser_direct cache {info,clear,prune}`: the disk cache of compiled kernels."""

from __future__ import annotations

import argparse
from typing import Any

from fuser_direct import cache, cache_folder
from fuser_direct.errors import InputError

_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")


def add_command(commands: Any) -> None:
    """Adds `cache` to the command line."""
    command: argparse.ArgumentParser = commands.add_parser(
        "cache",
        help="show, empty or shrink the disk cache of compiled kernels",
        description="The folder is FUSER_DIRECT_CACHE_DIR, else fuser_direct in XDG_CACHE_HOME or "
        "~/.cache; FUSER_DIRECT_CACHE_SIZE is its bound (default 1G), FUSER_DIRECT_CACHE=0 "
        "switches "
        "it off.",
    )
    actions = command.add_subparsers(title="actions", metavar="ACTION", required=True)
    actions.add_parser("info", help="folder, bound, entries and bytes").set_defaults(run=_info)
    actions.add_parser("clear", help="remove all entries").set_defaults(run=_clear)
    prune = actions.add_parser("prune", help="remove the entries unused for longest")
    prune.add_argument(
        "--size", metavar="SIZE", help="such as 200M: what may stay; default: the cache's bound"
    )
    prune.set_defaults(run=_prune)


def _current() -> cache.DiskCache:
    disk = cache.current()
    if disk is None:
        raise InputError("cache: it is switched off by FUSER_DIRECT_CACHE=0; unset that first")
    return disk


def _info(arguments: argparse.Namespace) -> int:
    disk = cache.current()
    if disk is None:
        print("switched off by FUSER_DIRECT_CACHE=0")
        return 0
    usage = disk.usage()
    print(f"folder   {disk.folder}")
    print(f"bound    {size_text(disk.limit_bytes)}")
    print(f"entries  {usage.entries:,}")
    print(f"size     {size_text(usage.size_bytes)}")
    return 0


def _clear(arguments: argparse.Namespace) -> int:
    return _report(_current().clear())


def _prune(arguments: argparse.Namespace) -> int:
    limit = None
    if arguments.size is not None:
        limit = cache.size_in_bytes(arguments.size, "--size")
    return _report(_current().prune(limit))


def _report(removed: cache_folder.Usage) -> int:
    print(f"removed {removed.entries:,} entries, {size_text(removed.size_bytes)}")
    return 0


def size_text(size_bytes: int) -> str:
    """`12.3 MiB`."""
    amount = float(size_bytes)
    for unit in _UNITS:
        if amount < 1024 or unit == _UNITS[-1]:
            break
        amount /= 1024
    return f"{amount:.0f} {unit}" if unit == "bytes" else f"{amount:.1f} {unit}"
