"""Which axes IdModel maps, in each mode, and what it refuses."""

from __future__ import annotations

import pytest

from fuser_direct import DefinitionError, DefinitionTypeError, FusionDefinition, IdMappingMode
from fuser_direct.idm import IdModel, ValGraph
from fuser_direct.ir.values import TensorView

EXACT, PERMISSIVE = IdMappingMode.exact, IdMappingMode.permissive


def _bias_sum() -> tuple[FusionDefinition, dict[str, TensorView]]:
    """y = sum(x + bias, 1), with x [i0, i1] and bias [i1]."""
    with FusionDefinition() as fd:
        x, bias = fd.define_tensor([-1, -1]), fd.define_tensor([-1])
        wide = fd.ops.broadcast(bias, [True, False])
        y = fd.ops.add(x, wide)
        total = fd.ops.sum(y, 1)
        fd.add_output(total)
    return fd, {"x": x, "bias": bias, "wide": wide, "y": y, "total": total}


def _graph(fd: FusionDefinition, mode: IdMappingMode) -> ValGraph:
    assert fd.fusion is not None
    return IdModel(fd.fusion).maybe_build_graph(mode)


def test_axes_are_mapped_through_pointwise_broadcast_and_reduction() -> None:
    fd, tv = _bias_sum()
    sets = _graph(fd, EXACT).disjoint_val_sets()
    assert sets.strict_are_mapped(tv["bias"].axis(0), tv["total"].axis(1))
    assert sets.strict_are_mapped(tv["x"].axis(0), tv["total"].axis(0))
    assert not sets.strict_are_mapped(tv["x"].axis(0), tv["x"].axis(1))


def test_exact_tells_a_broadcast_from_what_it_meets_and_permissive_does_not() -> None:
    fd, tv = _bias_sum()
    pair = tv["wide"].axis(0), tv["y"].axis(0)
    assert not _graph(fd, EXACT).disjoint_val_sets().strict_are_mapped(*pair)
    assert _graph(fd, PERMISSIVE).disjoint_val_sets().strict_are_mapped(*pair)


def test_equal_transforms_of_mapped_axes_are_mapped() -> None:
    fd, tv = _bias_sum()
    tv["x"].split(1, 32)
    tv["y"].split(1, 32)
    tv["total"].split(1, 16)
    sets = _graph(fd, EXACT).disjoint_val_sets()
    assert sets.strict_are_mapped(tv["x"].axis(2), tv["y"].axis(2))
    assert not sets.strict_are_mapped(tv["x"].axis(1), tv["y"].axis(2))
    assert not sets.strict_are_mapped(tv["y"].axis(2), tv["total"].axis(2))


def test_map_vals_reaches_what_equal_transforms_made() -> None:
    with FusionDefinition() as fd:
        x, y = fd.define_tensor([-1, 3]), fd.define_tensor([-1, 3])
        fd.add_output(fd.ops.relu(x))
        fd.add_output(fd.ops.relu(y))
    for tv in (x, y):
        tv.merge(0, 1)
        tv.split(0, 4)
    graph = _graph(fd, EXACT)
    assert not graph.are_mapped(x.axis(1), y.axis(1))
    for mine, theirs in zip(x.get_logical_domain(), y.get_logical_domain(), strict=True):
        graph.map_vals(mine, theirs)
    assert graph.are_mapped(x.axis(1), y.axis(1))


def test_permute_maps_by_its_dims() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1, -1])
        y = fd.ops.permute(x, [2, 0, 1])
        fd.add_output(y)
    graph = _graph(fd, EXACT)
    assert [graph.are_mapped(y.axis(0), x.axis(d)) for d in range(3)] == [False, False, True]


def test_an_axis_of_another_fusion_is_refused() -> None:
    fd, tv = _bias_sum()
    _, other = _bias_sum()
    sets = _graph(fd, EXACT).disjoint_val_sets()
    with pytest.raises(DefinitionError, match="is no axis of this fusion"):
        sets.strict_are_mapped(tv["x"].axis(0), other["x"].axis(0))


def test_self_mapping_is_refused_where_it_is_not_allowed() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1])
        fd.add_output(fd.ops.add(x, fd.ops.permute(x, [1, 0])))
    assert fd.fusion is not None
    IdModel(fd.fusion)
    with pytest.raises(DefinitionError, match="mapped to each other"):
        IdModel(fd.fusion, allow_self_mapping=False)


def test_the_model_prints_the_graphs_that_were_built() -> None:
    fd, _ = _bias_sum()
    assert fd.fusion is not None
    model = IdModel(fd.fusion)
    assert "graph" not in str(model)
    graph = model.maybe_build_graph(EXACT)
    assert model.maybe_build_graph(EXACT) is graph
    assert "IdMappingMode.exact graph:" in str(model)
    assert "{ iS0{i0}; " in str(graph)
    everything = str(IdModel(fd.fusion, build_graphs=True))
    assert everything.count(" graph:") == len(IdMappingMode.__members__)


def test_wrong_types_are_refused() -> None:
    fd, _ = _bias_sum()
    assert fd.fusion is not None
    with pytest.raises(DefinitionTypeError, match="must be a Fusion"):
        IdModel(fd)  # type: ignore[arg-type]
    with pytest.raises(DefinitionTypeError, match="must be an IdMappingMode"):
        IdModel(fd.fusion).maybe_build_graph(0)  # type: ignore[arg-type]
