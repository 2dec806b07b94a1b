"""`torch.compile(model, backend="fuser_direct")`: TorchDynamo's graphs, forward and backward, with
their pointwise ops and reductions fused.

Installed, PyTorch finds the backend by the entry point group `torch_dynamo_backends`; in a
development tree call `register()` first. This module imports PyTorch only when it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fuser_direct.torch_backend.report import Explanation

__all__ = ["explain", "fuser_direct", "register"]


def fuser_direct(
    gm: Any,
    example_inputs: Sequence[Any],
    *,
    options: dict[str, Any] | None = None,
    mode: Any = None,
) -> Callable[..., Any]:
    """The backend: compiles one Dynamo graph.

    options: `{"emulate_eager_rounding": True}` rounds half-precision values after every op, as
    eager does. mode: accepted for torch.compile and without effect. Raises InputError for an
    unknown option.
    """
    from fuser_direct.torch_backend.backend import compile_graph

    return compile_graph(gm, example_inputs, options or {})


def register() -> None:
    """Make `backend="fuser_direct"` known to torch.compile where the package isn't installed."""
    from torch._dynamo.backends.registry import list_backends, register_backend

    if "fuser_direct" not in list_backends(()):
        register_backend(name="fuser_direct")(fuser_direct)


def explain(model: Callable[..., Any], *args: Any, **kwargs: Any) -> Explanation:
    """Compile and run `model(*args, **kwargs)`, and say what was fused, what was not, and why.

    The backward pass is run too where the result needs a gradient; no `.grad` is changed. Dynamo's
    compiled code of earlier calls is dropped.
    """
    from fuser_direct.torch_backend.report import explain as run

    return run(model, args, kwargs)
