"""Random graphs on CUDA tensors, compared to the bit; `python -m tests.random_runs` runs more."""

from __future__ import annotations

import pytest

from tests.random_graphs import build
from tests.random_runs import check, script, seeded


@pytest.mark.parametrize("seed", range(120))
def test_seeded_graph_agrees_with_reference(seed: int, device: str) -> None:
    fd, graph, values = build(seeded(seed), device, most_steps=(39, 12, 20)[seed % 3])
    try:
        check(fd, graph, values)
    except Exception as error:
        raise AssertionError(f"{error}\n{script(fd, graph.inputs)}") from error
