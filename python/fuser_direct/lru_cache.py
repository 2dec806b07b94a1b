"""A cache of executors by definition, and a decorator that puts definitions into it."""

from __future__ import annotations

import functools
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

from fuser_direct.definition import FusionDefinition
from fuser_direct.errors import DefinitionStateError, DefinitionTypeError, InputError
from fuser_direct.executor import FusionExecutorCache
from fuser_direct.ir.fusion import Fusion


@dataclass
class _Entry:
    executor: FusionExecutorCache
    hits: int = 0


class LRUCache:
    """Executors of at most `max_fusions` definitions; the one that was asked for longest ago goes
    first.

    Equal definitions (`Fusion.__eq__`) get the same executor, and with it all that it has compiled.
    May be used from several threads.
    """

    def __init__(self, max_fusions: int) -> None:
        if isinstance(max_fusions, bool) or not isinstance(max_fusions, int) or max_fusions <= 0:
            raise InputError(f"LRUCache: max_fusions must be an int above 0, got {max_fusions!r}")
        self._max_fusions = max_fusions
        self._entries: OrderedDict[Hashable, _Entry] = OrderedDict()
        self._lookups = 0
        self._hits = 0
        self._lock = threading.Lock()

    def cache_compile(self, fusion: Fusion) -> FusionExecutorCache:
        """The executor of this definition: a new one that takes the fusion over, or the one of an
        equal fusion.
        """
        if not isinstance(fusion, Fusion):
            raise DefinitionTypeError(
                "cache_compile(): incompatible function arguments: fusion must be a Fusion, got "
                f"{type(fusion).__name__}"
            )
        key = fusion.key()
        with self._lock:
            self._lookups += 1
            entry = self._entries.get(key)
            if entry is None:
                entry = self._entries[key] = _Entry(FusionExecutorCache(fusion))
                if len(self._entries) > self._max_fusions:
                    self._entries.popitem(last=False)
            else:
                entry.hits += 1
                self._hits += 1
            self._entries.move_to_end(key)
            return entry.executor

    def num_fusions(self) -> int:
        """How many definitions are held."""
        with self._lock:
            return len(self._entries)

    def stats(self) -> str:
        """Size, hits of each entry (the one asked for last first) and the hit rate, as text."""
        with self._lock:
            head = f"Max Fusions Allowed: {self._max_fusions}\n"
            if not self._entries:
                return head + "The fusion cache is empty.\n"
            lines = [
                f"Total Fusions in Cache: {len(self._entries)}",
                f"Total Unique Fusions Compiled: {self._lookups - self._hits}",
                "Cache Hits by LRU ordering:",
            ]
            recent = reversed(self._entries.values())
            lines += [f"\t{i} -> {entry.hits} hits" for i, entry in enumerate(recent)]
            lines += [
                f"Cache Lookups: {self._lookups}",
                f"Cache Hits: {self._hits}",
                f"Hit Rate: {100 * self._hits / self._lookups:g}%",
            ]
            return head + "".join(f"{line}\n" for line in lines)


class LruFusionCache:
    """Decorator of functions that return a FusionDefinition: equal definitions share one executor.

    The decorated function has `.stats()` and `.num_fusions()` of its cache.
    """

    def __init__(self, max_fusions: int = 16384) -> None:
        self._cache = LRUCache(max_fusions)

    def __call__(self, function: Callable[..., FusionDefinition]) -> Any:
        """`function` with its results' executors taken from the cache."""

        @functools.wraps(function)
        def cached(*args: Any, **kwargs: Any) -> FusionDefinition:
            definition = function(*args, **kwargs)
            if "fec" not in definition.__dict__:
                fusion = definition.fusion
                if fusion is None:
                    raise DefinitionStateError(
                        f"LruFusionCache: {function.__name__} returned a FusionDefinition that "
                        "was never entered; define it inside `with FusionDefinition() as fd:`"
                    )
                definition.fec = self._cache.cache_compile(fusion)
                # From here on the executor owns the fusion.
                definition.__dict__.pop("_fusion", None)
            return definition

        cached.stats = self._cache.stats  # type: ignore[attr-defined]
        cached.num_fusions = self._cache.num_fusions  # type: ignore[attr-defined]
        return cached
