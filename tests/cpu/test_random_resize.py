"""Random graphs of pointwise math, reductions, moves and library ops, compared to the bit."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from tests.random_graphs import build
from tests.random_runs import check, script, seeded


@settings(
    max_examples=150,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
    print_blob=True,
)
@given(st.data())
def test_random_graph_agrees_with_reference(data: st.DataObject) -> None:
    fd, graph, values = build(lambda count: data.draw(st.integers(0, count - 1)), "cpu")
    note(script(fd, graph.inputs))
    check(fd, graph, values)


@pytest.mark.parametrize("seed", range(60))
def test_seeded_graph_agrees_with_reference(seed: int, device: str) -> None:
    # Hypothesis favours small numbers; a generator doesn't.
    fd, graph, values = build(seeded(seed), device, most_steps=(39, 12, 20)[seed % 3])
    try:
        check(fd, graph, values)
    except Exception as error:
        raise AssertionError(f"{error}\n{script(fd, graph.inputs)}") from error
