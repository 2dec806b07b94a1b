"""From a Dynamo graph to a callable: AOTAutograd, decompositions, partitioning."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.partitioners import min_cut_rematerialization_partition

from fuser_direct.errors import InputError
from fuser_direct.torch_backend import report
from fuser_direct.torch_backend.decompositions import decompositions
from fuser_direct.torch_backend.rebuild import fuse

log = logging.getLogger("fuser_direct.torch_backend")
_OPTIONS = {"emulate_eager_rounding": bool}


def compile_graph(
    gm: torch.fx.GraphModule, example_inputs: Sequence[Any], options: dict[str, Any]
) -> Callable[..., Any]:
    """The compiled form of one Dynamo graph; see `fuser_direct.torch_backend.fuser_direct`."""
    _check(options)
    emulate = bool(options.get("emulate_eager_rounding", False))

    def compiler(kind: str) -> Callable[..., Any]:
        def compile_aten(aten: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
            made, summary = fuse(aten, kind, emulate)
            report.record(summary)
            log.info("%s", summary)
            return _boxed(made)

        return compile_aten

    compiled: Callable[..., Any] = aot_autograd(
        fw_compiler=compiler("forward"),
        bw_compiler=compiler("backward"),
        inference_compiler=compiler("inference"),
        decompositions=decompositions(),
        partition_fn=min_cut_rematerialization_partition,
        keep_inference_input_mutations=True,
    )(gm, example_inputs)
    return compiled


def _check(options: dict[str, Any]) -> None:
    for name, value in options.items():
        if name not in _OPTIONS:
            raise InputError(
                f"torch.compile(backend='fuser_direct'): unknown option {name!r}; known are "
                f"{', '.join(_OPTIONS)}"
            )
        if not isinstance(value, _OPTIONS[name]):
            raise InputError(
                f"torch.compile(backend='fuser_direct'): option {name!r} must be a "
                f"{_OPTIONS[name].__name__}, got {value!r}"
            )


def _boxed(gm: torch.fx.GraphModule) -> Callable[..., Any]:
    """`gm` called with one list, which it empties, so that inputs are freed after last use."""
    boxed = getattr(torch.fx.graph, "_BoxedCodeGen", None)
    if boxed is None:
        from torch._functorch._aot_autograd.utils import make_boxed_func

        made: Callable[..., Any] = make_boxed_func(gm.forward)
        return made
    gm.graph.set_codegen(boxed())
    gm.recompile()
    forward = gm.forward

    def run(args: list[Any]) -> Any:
        return forward(args)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run
