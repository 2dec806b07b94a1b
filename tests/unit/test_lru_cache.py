"""LRUCache and LruFusionCache: what shares an executor, what is dropped, and the text."""

from __future__ import annotations

import pytest

from fuser_direct import (
    DataType,
    DefinitionStateError,
    DefinitionTypeError,
    Fusion,
    FusionDefinition,
    InputError,
    LRUCache,
    LruFusionCache,
)


def _shifted(amount: float, dtype: DataType = DataType.Float) -> FusionDefinition:
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.add(fd.define_tensor([-1, -1], dtype=dtype), amount))
    return fd


def _fusion(fd: FusionDefinition) -> Fusion:
    assert fd.fusion is not None
    return fd.fusion


def test_equal_definitions_get_the_same_executor() -> None:
    cache = LRUCache(4)
    first = cache.cache_compile(_fusion(_shifted(1.0)))
    assert cache.cache_compile(_fusion(_shifted(1.0))) is first
    assert cache.num_fusions() == 1


@pytest.mark.parametrize("other", [_shifted(2.0), _shifted(1.0, DataType.Half)])
def test_different_definitions_get_executors_of_their_own(other: FusionDefinition) -> None:
    cache = LRUCache(4)
    first = cache.cache_compile(_fusion(_shifted(1.0)))
    assert cache.cache_compile(_fusion(other)) is not first
    assert cache.num_fusions() == 2


def test_the_entry_that_was_asked_for_longest_ago_is_dropped() -> None:
    cache = LRUCache(2)
    one = cache.cache_compile(_fusion(_shifted(1.0)))
    two = cache.cache_compile(_fusion(_shifted(2.0)))
    assert cache.cache_compile(_fusion(_shifted(1.0))) is one
    cache.cache_compile(_fusion(_shifted(3.0)))
    assert cache.num_fusions() == 2
    assert cache.cache_compile(_fusion(_shifted(1.0))) is one
    assert cache.cache_compile(_fusion(_shifted(2.0))) is not two


def test_stats_of_an_empty_cache() -> None:
    assert LRUCache(10).stats() == "Max Fusions Allowed: 10\nThe fusion cache is empty.\n"


def test_stats_list_hits_with_the_latest_entry_first() -> None:
    cache = LRUCache(10)
    for amount in (1.0, 1.0, 1.0, 2.0, 2.0, 1.0):
        cache.cache_compile(_fusion(_shifted(amount)))
    assert cache.stats() == (
        "Max Fusions Allowed: 10\n"
        "Total Fusions in Cache: 2\n"
        "Total Unique Fusions Compiled: 2\n"
        "Cache Hits by LRU ordering:\n"
        "\t0 -> 3 hits\n"
        "\t1 -> 1 hits\n"
        "Cache Lookups: 6\n"
        "Cache Hits: 4\n"
        "Hit Rate: 66.6667%\n"
    )


@pytest.mark.parametrize("size", [0, -1, True, 1.5])
def test_a_size_that_is_no_count_is_refused(size: int) -> None:
    with pytest.raises(InputError, match="max_fusions must be an int above 0"):
        LRUCache(size)


def test_a_definition_instead_of_its_fusion_is_refused() -> None:
    with pytest.raises(DefinitionTypeError, match="fusion must be a Fusion"):
        LRUCache(1).cache_compile(_shifted(1.0))  # type: ignore[arg-type]


def test_decorated_functions_share_executors_and_count_fusions() -> None:
    cached = LruFusionCache(max_fusions=3)(_shifted)
    first, second = cached(1.0), cached(1.0)
    assert first.fec is second.fec
    assert "_fusion" not in first.__dict__
    cached(2.0)
    assert cached.num_fusions() == 2
    assert "Cache Hits: 1" in cached.stats()
    assert cached.__name__ == "_shifted"


def test_decorated_function_leaves_a_definition_that_has_an_executor_alone() -> None:
    cached = LruFusionCache()(lambda fd: fd)
    fd = cached(_shifted(1.0))
    executor = fd.fec
    assert cached(fd).fec is executor
    assert cached.num_fusions() == 1


def test_decorated_function_without_a_definition_is_refused() -> None:
    with pytest.raises(DefinitionStateError, match="never entered"):
        LruFusionCache()(FusionDefinition)()
