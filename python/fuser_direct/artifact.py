"""Ahead-of-time compilation: a definition and its kernels for named targets, in one file that runs
elsewhere.

`compile` needs no GPU; `load(path).execute(inputs)` needs neither NVRTC nor llvmlite for the kinds
of call that were compiled. The file is data: the definition as a graph, the devices that kernels
were scheduled for, and the kernels, under one checksum. It guards against damage, not against a
forger: load files that you trust, as you would a library.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import os
import struct
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from fuser_direct.cache import Binary
from fuser_direct.codegen.llvm_types import CpuTarget as Processor
from fuser_direct.compiler import devices
from fuser_direct.compiler.arguments import CPU, CUDA
from fuser_direct.compiler.targets import CpuTarget, CudaTarget, Target
from fuser_direct.errors import (
    DefinitionStateError,
    DefinitionTypeError,
    InputError,
    UnsupportedError,
)
from fuser_direct.ir import graph_data
from fuser_direct.ir.fusion import Fusion
from fuser_direct.schedulers.contract import CudaDevice, Scheduled
from fuser_direct.specs import TensorSpec, argument, spec_of, texts
from fuser_direct.version import __version__

if TYPE_CHECKING:
    from fuser_direct import _ext
    from fuser_direct.compiler.arg_info import ArgInfo

_MAGIC = b"fuser_direct artifact 1\n"
_LENGTH = struct.Struct("<I")
Progress = Callable[[int, int, str], None]
Spec = TensorSpec | bool | int | float | complex


class Artifact:
    """A compiled definition. Call it, or `execute`, as the definition itself; `save` it for other
    machines.
    """

    def __init__(
        self, fusion: Fusion, targets: Sequence[Target], calls: Sequence[Sequence[Spec]], name: str
    ) -> None:
        """name: how messages call it. The targets hold the kernels."""
        self._fusion = fusion
        self._targets = tuple(targets)
        self._calls = tuple(tuple(call) for call in calls)
        self._name = name

    @property
    def targets(self) -> tuple[str, ...]:
        """Names of the targets, such as "sm_90a" and "x86-64-v3"."""
        return tuple(target.name for target in self._targets)

    @property
    def calls(self) -> tuple[tuple[Spec, ...], ...]:
        """The kinds of call that it was compiled for."""
        return self._calls

    @property
    def num_kernels(self) -> int:
        """Kernels of all targets together."""
        return sum(len(target.found) for target in self._targets)

    def fusion(self) -> Fusion:
        """The definition."""
        return self._fusion

    # --- running ---

    def execute(self, inputs: Iterable[Any], *, device: Any = None) -> list[Any]:
        """Run the definition on `inputs`; arguments, result and errors as of
        `FusionDefinition.execute`.

        Raises UnsupportedError if no target is of the inputs' device, and if the call needs a
        kernel that isn't here and can't be compiled either.
        """
        from fuser_direct.definition import _device_index, _flattened

        arguments = _flattened(inputs)
        if device is None:
            return list(self._executor.execute(arguments))
        return list(self._executor.execute(arguments, device=_device_index(device)))

    def __call__(self, *inputs: Any) -> list[Any]:
        """`execute(inputs)`."""
        return self.execute(inputs)

    @functools.cached_property
    def _executor(self) -> _ext.ExecutorCache:
        from fuser_direct import _ext

        linker = _Linker(self._fusion, self._targets, self._calls, self._name)
        return _ext.ExecutorCache(linker.compile, list(linker.compiler.shape_scalars))

    # --- files ---

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the artifact to a file, replacing it at once."""
        private = f"{os.fspath(path)}.{os.getpid()}.tmp"
        try:
            with open(private, "wb") as file:
                file.write(self.to_bytes())
            os.replace(private, path)
        except BaseException:
            if os.path.exists(private):
                os.unlink(private)
            raise

    def to_bytes(self) -> bytes:
        """The file's content: magic, SHA-256 of the rest, length of the head, head as JSON, kernels
        one after the other.
        """
        blobs: list[bytes] = []
        head = {
            "version": str(__version__),
            "definition": graph_data.to_data(self._fusion),
            "calls": [[_spec_data(spec) for spec in call] for call in self._calls],
            "targets": [_target_data(target, blobs) for target in self._targets],
        }
        text = json.dumps(head, separators=(",", ":")).encode()
        rest = _LENGTH.pack(len(text)) + text + b"".join(blobs)
        return _MAGIC + hashlib.sha256(rest).digest() + rest


def compile(
    definition: Any,
    inputs: Sequence[Any],
    targets: Sequence[str],
    progress: Progress | None = None,
) -> Artifact:
    """Compile a definition for machines that need not be here.

    definition: a FusionDefinition or Fusion. inputs: one TensorSpec, tensor or number an input; or
    several such lists, for several kinds of call. targets: "sm_90a" and the like, "compute_90"
    (PTX, for any later GPU), "cpu" (processors as able as this one's level), "x86-64-v2",
    "x86-64-v3", "x86-64-v4". progress: called with (done, all, name) as kernels are finished.

    A kernel serves every shape of its class, so the artifact serves more sizes than those given.
    Raises InputError for inputs that don't fit, UnsupportedError for a target that can't be
    compiled for here, CompileError.
    """
    # A copy by way of data: the caller's fusion stays the caller's, and what can't be stored is
    # refused now.
    fusion = graph_data.from_data(graph_data.to_data(fusion_of(definition)))
    if not targets or isinstance(targets, str):
        raise InputError(
            f"compile: targets must be a list such as ['sm_90a', 'cpu'], got {targets!r}"
        )
    calls = _calls_of(inputs)
    made = [target_of(name) for name in dict.fromkeys(targets)]
    jobs = [
        (target, item)
        for target in made
        for call in calls
        for item in _scheduled(fusion, target, call)
    ]
    distinct = {target.kernel_id(item): (target, item) for target, item in jobs}
    done = 0
    with ThreadPoolExecutor(min(len(distinct), os.cpu_count() or 1) or 1) as pool:
        binaries = pool.map(lambda job: job[0].binary(job[1])[0], distinct.values())
        for (number, (target, item)), binary in zip(distinct.items(), binaries, strict=True):
            target.found[number] = binary
            done += 1
            if progress is not None:
                progress(done, len(distinct), f"{item.lowered.kernel.name} for {target.name}")
    return Artifact(fusion, made, calls, "this artifact")


def load(path: str | os.PathLike[str]) -> Artifact:
    """The artifact in a file.

    Raises InputError if the file is damaged or none of ours, UnsupportedError if another version
    made it, OSError if it can't be read.
    """
    with open(path, "rb") as file:
        data = file.read()
    return from_bytes(data, f"artifact {os.fspath(path)}")


def from_bytes(data: bytes, name: str = "artifact") -> Artifact:
    """The artifact in the bytes that `Artifact.to_bytes` gave; errors as of `load`, in the name of
    `name`.
    """
    if not data.startswith(_MAGIC):
        raise InputError(
            f"{name}: not an artifact of this format; expected it to start with {_MAGIC[:-1]!r}"
        )
    start = len(_MAGIC) + hashlib.sha256().digest_size
    checksum, rest = data[len(_MAGIC) : start], data[start:]
    if hashlib.sha256(rest).digest() != checksum:
        raise InputError(
            f"{name}: its content differs from its checksum: it is damaged or was altered; "
            f"compile it again"
        )
    try:
        (length,) = _LENGTH.unpack_from(rest)
        head = json.loads(rest[_LENGTH.size : _LENGTH.size + length])
        blobs = rest[_LENGTH.size + length :]
        if head["version"] != str(__version__):
            raise UnsupportedError(
                f"{name}: made by fuser_direct {head['version']}, and this is {__version__}; "
                f"kernels fit the version "
                "that made them: compile it again with this one, or install the other"
            )
        targets = [_target_from_data(row, blobs) for row in head["targets"]]
        calls = [[_spec_from_data(row) for row in call] for call in head["calls"]]
        return Artifact(graph_data.from_data(head["definition"]), targets, calls, name)
    except (KeyError, IndexError, TypeError, ValueError, struct.error) as error:
        raise InputError(
            f"{name}: damaged: {type(error).__name__}: {error}; compile it again"
        ) from error


# --- parts of `compile` ---


def fusion_of(definition: Any) -> Fusion:
    """The fusion of a FusionDefinition, or the Fusion itself."""
    fusion = definition if isinstance(definition, Fusion) else getattr(definition, "fusion", None)
    if not isinstance(fusion, Fusion):
        if hasattr(definition, "fusion"):
            raise DefinitionStateError(
                "compile: the definition is empty; define it inside `with FusionDefinition()`"
            )
        raise DefinitionTypeError(
            f"compile: definition must be a FusionDefinition or a Fusion, got "
            f"{type(definition).__name__}"
        )
    return fusion


def _calls_of(inputs: Sequence[Any]) -> list[list[Spec]]:
    several = bool(inputs) and all(isinstance(call, (list, tuple)) for call in inputs)
    calls = inputs if several else [inputs]
    return [[spec_of(value, i) for i, value in enumerate(call)] for call in calls]


def target_of(name: str) -> CpuTarget | CudaTarget:
    """The described machine behind a target's name."""
    if devices.is_cpu(name):
        return CpuTarget(devices.cpu(name))
    from fuser_direct.compiler.build_cuda import CudaOptions

    return CudaTarget(devices.gpu(name), CudaOptions())


def _scheduled(fusion: Fusion, target: Target, call: Sequence[Spec]) -> list[Scheduled]:
    """The kernels of one call on one target."""
    from fuser_direct.compiler.pipeline import FusionCompiler
    from fuser_direct.compiler.preview import PreviewAssembler

    kind = CPU if isinstance(target, CpuTarget) else CUDA
    args = [argument(spec, kind) for spec in call]
    assert isinstance(target, (CpuTarget, CudaTarget))
    device = -1 if kind == CPU else 0
    assembler = FusionCompiler(fusion).assembler(PreviewAssembler, args, device, target=target)
    return [item for step in assembler.planned() for item in step.kernels]


# --- running ---


class _Linker:
    """Makes the programs of an artifact's calls from its kernels."""

    def __init__(
        self, fusion: Fusion, targets: Sequence[Target], calls: Sequence[Sequence[Spec]], name: str
    ) -> None:
        from fuser_direct.compiler.pipeline import FusionCompiler

        self.compiler = FusionCompiler(fusion)
        self._name = name
        kinds = "; ".join(f"({texts(call)})" for call in calls)
        for target in targets:
            target.origin = f"{name}, which was compiled for calls like {kinds}"
        self._targets = targets

    def compile(
        self, args: Sequence[ArgInfo], device: int | None, options: Any = ((), ())
    ) -> _ext.Program:
        """The program for one kind of call; the executor asks for it."""
        from fuser_direct.compiler import arguments, packed
        from fuser_direct.compiler.program import Assembler

        arguments.check(self.compiler.fusion, packed.in_elements(self.compiler.fusion, args))
        home = arguments.common_device(args, device) or self._default_home()
        target = self._target_for(home)
        where = device if device is not None or home[0] == CUDA else -1
        return self.compiler.assembler(Assembler, args, where, options, target=target).run()

    def _default_home(self) -> tuple[int, int]:
        from fuser_direct import _ext

        has_gpu = any(isinstance(target, CudaTarget) for target in self._targets)
        return (CUDA, 0) if has_gpu and _ext.cuda_status()["available"] else (CPU, 0)

    def _target_for(self, home: tuple[int, int]) -> CpuTarget | CudaTarget:
        """The best target that runs there: exact ones before PTX, later before earlier, wide
        vectors before narrow.
        """
        if home[0] == CPU:
            cpus = [
                t for t in self._targets if isinstance(t, CpuTarget) and devices.runs_here(t.host)
            ]
            if cpus:
                return max(cpus, key=lambda t: t.host.vector_bits)
            wanted = "this machine's processor"
        else:
            from fuser_direct import _ext

            capability = _ext.device_properties(home[1]).compute_capability
            gpus = [
                t
                for t in self._targets
                if isinstance(t, CudaTarget) and devices.runs_on(t.device.arch, capability)
            ]
            if gpus:
                return max(gpus, key=lambda t: devices.rank(t.device.arch))
            wanted = f"cuda:{home[1]}, which is sm_{capability[0]}{capability[1]}"
        names = ", ".join(target.name for target in self._targets)
        raise UnsupportedError(
            f"{self._name}: compiled for {names}, none of which runs on {wanted}; compile it for "
            f"that target too"
        )


# --- data ---


def _spec_data(spec: Spec) -> Any:
    if not isinstance(spec, TensorSpec):
        return graph_data.plain(spec)
    strides = None if spec.strides is None else list(spec.strides)
    return [list(spec.shape), spec.dtype.name, strides, spec.device, spec.alignment]


def _spec_from_data(row: Any) -> Spec:
    if not isinstance(row, list):
        return graph_data.restored(row)  # type: ignore[no-any-return]
    shape, dtype, strides, device, alignment = row
    return TensorSpec(
        tuple(shape), graph_data.restored({"dtype": dtype}), strides, device, alignment
    )


def _target_data(target: Target, blobs: list[bytes]) -> Any:
    assert isinstance(target, (CpuTarget, CudaTarget))
    facts: dict[str, Any] = (
        {"cpu": dataclasses.asdict(target.host)}
        if isinstance(target, CpuTarget)
        else {
            "cuda": dataclasses.asdict(target.device),
            "options": dataclasses.asdict(target.options),
        }
    )
    kernels = []
    for number, binary in target.found.items():
        blob = binary.to_bytes()
        kernels.append([number.hex(), sum(map(len, blobs)), len(blob)])
        blobs.append(blob)
    return {**facts, "kernels": kernels}


def _target_from_data(row: Any, blobs: bytes) -> Target:
    target: Target
    if "cpu" in row:
        target = CpuTarget(Processor(**row["cpu"]))
    else:
        from fuser_direct.compiler.build_cuda import CudaOptions

        target = CudaTarget(CudaDevice(**row["cuda"]), CudaOptions(**row["options"]))
    for number, start, size in row["kernels"]:
        binary = Binary.from_bytes(blobs[start : start + size])
        if binary is None:
            raise ValueError(f"kernel {number} is cut off")
        target.found[bytes.fromhex(number)] = binary
    return target
