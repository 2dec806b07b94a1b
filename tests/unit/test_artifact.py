"""Ahead-of-time artifacts: compiled for machines that aren't here, stored as data, refused where
they don't fit.
"""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fuser_direct
from fuser_direct import FusionDefinition, TensorSpec, _ext, artifact
from fuser_direct.compiler import devices, toolchain
from fuser_direct.enums import DataType
from fuser_direct.errors import (
    DefinitionStateError,
    DefinitionTypeError,
    InputError,
    InputTypeError,
    UnsupportedError,
)
from fuser_direct.specs import argument, as_data_type, parse, spec_of
from fuser_direct.version import __version__

GPUS = ["sm_80", "sm_90a", "sm_100"]


def rms_norm() -> FusionDefinition:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], [True, True], DataType.Float)
        w = fd.define_tensor([-1], [True], DataType.Float)
        eps = fd.define_scalar(None, DataType.Double)
        mean = fd.ops.div(fd.ops.sum(fd.ops.mul(x, x), [1]), fd.ops.size(x, 1))
        scale = fd.ops.rsqrt(fd.ops.add(mean, eps))
        y = fd.ops.mul(x, fd.ops.broadcast(scale, [False, True]))
        fd.add_output(fd.ops.mul(y, fd.ops.broadcast(w, [True, False])))
    return fd


SPECS = [TensorSpec((64, 512)), TensorSpec((512,)), 1e-6]


def expected(x: np.ndarray, w: np.ndarray, eps: float) -> np.ndarray:
    wide = x.astype(np.float64)
    result: np.ndarray = wide / np.sqrt((wide * wide).mean(1, keepdims=True) + eps) * w
    return result


@pytest.fixture(scope="module")
def made() -> artifact.Artifact:
    return fuser_direct.compile(rms_norm(), SPECS, [*GPUS, "cpu"])


def test_it_compiles_for_gpus_that_are_not_here(made: artifact.Artifact) -> None:
    assert made.targets[:3] == tuple(GPUS)
    for target, number in zip(made._targets, (80, 90, 100), strict=False):
        for binary in target.found.values():
            assert binary.image.startswith(b"\x7fELF")
            # A cubin's flags name its SM: bits 0..7 up to CUDA 12, bits 8..15 since.
            (flags,) = struct.unpack_from("<I", binary.image, 48)
            assert number in (flags & 0xFF, flags >> 8 & 0xFF)


def test_ptx_target_is_kept_as_text() -> None:
    made = fuser_direct.compile(rms_norm(), SPECS, ["compute_90"])
    (binary,) = made._targets[0].found.values()
    assert b".target sm_90" in binary.image


def test_saved_artifact_gives_the_definition_s_results(
    made: artifact.Artifact, tmp_path: Path
) -> None:
    made.save(tmp_path / "rms.fuser")
    loaded = fuser_direct.load(tmp_path / "rms.fuser")
    rng = np.random.default_rng(0)
    w = rng.standard_normal(512, np.float32)
    for rows in (64, 3, 1000):
        x = rng.standard_normal((rows, 512), np.float32)
        (y,) = loaded(x, w, 1e-6)
        np.testing.assert_allclose(y, expected(x, w, 1e-6), rtol=1e-5, atol=1e-6)
        assert np.array_equal(loaded.execute([x, w, 1e-6])[0], y)
    assert loaded.targets == made.targets
    assert loaded.calls == made.calls
    assert loaded.fusion() == rms_norm().fusion


_WITHOUT_COMPILERS = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("llvmlite", "cuda", "nvidia", "torch"):
            raise ImportError(f"{name} is not installed")
        return None

sys.meta_path.insert(0, Blocker())
import numpy as np
import fuser_direct

loaded = fuser_direct.load(sys.argv[1])
rng = np.random.default_rng(0)
x, w = rng.standard_normal((64, 512), np.float32), rng.standard_normal(512, np.float32)
(y,) = loaded(x, w, 1e-6)
wide = x.astype(np.float64)
want = wide / np.sqrt((wide * wide).mean(1, keepdims=True) + 1e-6) * w
print("error", abs(y - want).max())
try:
    # Another dtype's kernel can't be there: the definition itself refuses it; another layout's
    # can't either.
    loaded(np.asfortranarray(x)[::1], w, 1e-6)
except Exception as error:
    print("fortran", type(error).__name__)
try:
    loaded(x[:, :1].copy(), w[:1].copy(), 1e-6)
except Exception as error:
    print("other", type(error).__name__, error)
print("llvmlite" in sys.modules)
"""


def test_it_runs_where_no_compiler_is_installed(made: artifact.Artifact, tmp_path: Path) -> None:
    path = tmp_path / "rms.fuser"
    made.save(path)
    environment = {**os.environ, "FUSER_DIRECT_CACHE": "0"}
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT_COMPILERS, str(path)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    lines = done.stdout.splitlines()
    assert float(lines[0].split()[1]) < 1e-4
    assert lines[1] == "fortran InputError"
    assert lines[2].startswith("other UnsupportedError")
    assert "is not in it for" in lines[2]
    assert "f32[64,512], f32[512], 1e-06" in lines[2]
    assert "llvmlite" in lines[2]
    assert lines[-1] == "False"


def test_missing_kernel_is_compiled_where_a_compiler_is(made: artifact.Artifact) -> None:
    loaded = artifact.from_bytes(made.to_bytes())
    x, w = np.full((5, 1), 2.0, np.float32), np.ones(1, np.float32)
    (y,) = loaded(x, w, 0.0)
    np.testing.assert_allclose(y, np.ones((5, 1)), rtol=1e-6)


def test_several_kinds_of_call_are_held() -> None:
    one = fuser_direct.compile(rms_norm(), SPECS, ["cpu"])
    small = [TensorSpec((64, 1)), TensorSpec((1,)), 1e-6]
    both = fuser_direct.compile(rms_norm(), [SPECS, small], ["cpu"])
    assert len(both.calls) == 2
    assert both.num_kernels > one.num_kernels


def test_definition_stays_the_caller_s() -> None:
    fd = rms_norm()
    fuser_direct.compile(fd, SPECS, ["cpu"])
    x, w = np.ones((3, 4), np.float32), np.ones(4, np.float32)
    np.testing.assert_allclose(fd.execute([x, w, 0.0])[0], np.ones((3, 4)), rtol=1e-6)


def test_progress_counts_to_the_end() -> None:
    seen: list[tuple[int, int]] = []
    fuser_direct.compile(rms_norm(), SPECS, GPUS, lambda done, count, _: seen.append((done, count)))
    assert seen == [(1, 3), (2, 3), (3, 3)]


# --- refused ---


def test_every_flipped_byte_is_seen(made: artifact.Artifact) -> None:
    data = made.to_bytes()
    for place in range(0, len(data), max(len(data) // 500, 1)):
        damaged = bytearray(data)
        damaged[place] ^= 0x40
        with pytest.raises(InputError):
            artifact.from_bytes(bytes(damaged))


def test_truncated_file_is_refused_by_name(made: artifact.Artifact, tmp_path: Path) -> None:
    path = tmp_path / "half.fuser"
    path.write_bytes(made.to_bytes()[:-100])
    with pytest.raises(InputError, match=r"half\.fuser: its content differs from its checksum"):
        fuser_direct.load(path)


def test_other_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "picture.png"
    path.write_bytes(b"\x89PNG")
    with pytest.raises(InputError, match="not an artifact"):
        fuser_direct.load(path)


def rewritten(data: bytes, change: Any) -> bytes:
    """An artifact with another head and a checksum that fits it."""
    start = len(artifact._MAGIC) + 32
    (length,) = struct.unpack_from("<I", data, start)
    head = json.loads(data[start + 4 : start + 4 + length])
    change(head)
    text = json.dumps(head).encode()
    rest = struct.pack("<I", len(text)) + text + data[start + 4 + length :]
    import hashlib

    return artifact._MAGIC + hashlib.sha256(rest).digest() + rest


def test_other_version_is_refused_with_both_names(made: artifact.Artifact) -> None:
    other = rewritten(made.to_bytes(), lambda head: head.update(version="0.0.7"))
    message = f"made by fuser_direct 0.0.7, and this is {__version__}"
    with pytest.raises(UnsupportedError, match=message):
        artifact.from_bytes(other)


@pytest.mark.parametrize(
    "change",
    [
        lambda head: head.pop("targets"),
        lambda head: head["targets"][0]["kernels"][0].__setitem__(2, 5),
        lambda head: head["targets"][0]["cuda"].update(warp=32),
        lambda head: head["calls"].append([[1]]),
        lambda head: head["definition"]["exprs"].append(["exp"]),
    ],
)
def test_forged_head_is_an_error_of_ours(made: artifact.Artifact, change: Any) -> None:
    with pytest.raises(InputError):
        artifact.from_bytes(rewritten(made.to_bytes(), change))


def test_cpu_tensors_for_a_gpu_artifact_are_refused_with_both_names() -> None:
    made = fuser_direct.compile(rms_norm(), SPECS, ["sm_80", "sm_90a"])
    x, w = np.ones((64, 512), np.float32), np.ones(512, np.float32)
    message = "sm_80, sm_90a, none of which runs on this machine's processor"
    with pytest.raises(UnsupportedError, match=message):
        made(x, w, 1e-6)


def test_processor_without_the_target_s_instructions_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = fuser_direct.compile(rms_norm(), SPECS, ["x86-64-v3"])
    monkeypatch.setattr(toolchain, "cpu_flags", lambda: frozenset({"sse2", "avx"}))
    x, w = np.ones((64, 512), np.float32), np.ones(512, np.float32)
    with pytest.raises(UnsupportedError, match="compiled for x86-64-v3, none of which runs on"):
        made(x, w, 1e-6)


def test_wrong_target_names_are_refused() -> None:
    for name in ("sm_9", "sm90", "gfx942", "sm_75", ""):
        with pytest.raises(UnsupportedError, match="target"):
            fuser_direct.compile(rms_norm(), SPECS, [name])
    with pytest.raises(InputError, match="targets must be a list"):
        fuser_direct.compile(rms_norm(), SPECS, "sm_90a")


def test_wrong_definitions_and_inputs_are_refused() -> None:
    with pytest.raises(DefinitionTypeError, match="a FusionDefinition or a Fusion, got int"):
        fuser_direct.compile(3, SPECS, ["cpu"])
    with pytest.raises(DefinitionStateError):
        fuser_direct.compile(FusionDefinition(), SPECS, ["cpu"])
    with pytest.raises(InputError, match="1 arguments for 3 inputs"):
        fuser_direct.compile(rms_norm(), SPECS[:1], ["cpu"])
    with pytest.raises(InputError, match="dtype"):
        fuser_direct.compile(rms_norm(), [TensorSpec((4, 4), "f64"), *SPECS[1:]], ["cpu"])
    with pytest.raises(InputTypeError, match="input 0 is a str"):
        fuser_direct.compile(rms_norm(), ["f32[4,4]", *SPECS[1:]], ["cpu"])


# --- which images run where ---


@pytest.mark.parametrize(
    ("arch", "capability", "fits"),
    [
        ("sm_80", (8, 0), True),
        ("sm_80", (8, 9), True),
        ("sm_86", (8, 0), False),
        ("sm_80", (9, 0), False),
        ("sm_90", (9, 0), True),
        ("sm_90a", (9, 0), True),
        ("sm_90a", (10, 0), False),
        ("sm_100a", (10, 3), False),
        ("sm_100f", (10, 3), True),
        ("sm_100", (10, 3), True),
        ("sm_100", (12, 0), False),
        ("compute_90", (12, 0), True),
        ("compute_90", (8, 9), False),
        ("compute_90a", (10, 0), False),
    ],
)
def test_images_run_on_the_devices_that_cuda_allows(
    arch: str, capability: tuple[int, int], fits: bool
) -> None:
    assert devices.runs_on(arch, capability) == fits


class _Facts:
    def __init__(self, capability: tuple[int, int]) -> None:
        self.compute_capability = capability


@pytest.mark.parametrize(
    ("capability", "chosen"),
    [
        ((8, 6), "sm_80"),
        ((9, 0), "sm_90a"),
        ((10, 0), "sm_100"),
        ((12, 0), "compute_100"),
        ((7, 5), None),
    ],
)
def test_device_at_hand_chooses_the_target(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], chosen: str | None
) -> None:
    targets = ["compute_90", "sm_80", "sm_90a", "compute_100", "sm_100"]
    made = fuser_direct.compile(rms_norm(), SPECS, targets)
    loaded = artifact.from_bytes(made.to_bytes())
    linker = artifact._Linker(loaded.fusion(), loaded._targets, loaded.calls, "artifact a.fuser")
    monkeypatch.setattr(_ext, "device_properties", lambda _: _Facts(capability))

    def no_compiler(*_: object) -> None:
        raise AssertionError("a kernel of the artifact was compiled again")

    monkeypatch.setattr(_ext, "nvrtc_compile", no_compiler)
    args = [argument(spec, 2) for spec in SPECS]
    if chosen is None:
        with pytest.raises(UnsupportedError, match="none of which runs on cuda:0, which is sm_75"):
            linker.compile(args, None)
        return
    program = linker.compile(args, None)
    (kernel,) = program.info.kernels
    assert kernel.kernel.target == chosen
    assert kernel.kernel.was_found
    assert program.device_type == 2


def test_described_gpu_is_that_of_its_generation() -> None:
    assert devices.gpu("sm_90a").sm_count == 132
    assert devices.gpu("sm_90a").arch == "sm_90a"
    assert devices.gpu("sm_103").sm_count == devices.gpu("sm_100").sm_count
    assert devices.gpu("sm_89").max_threads_per_sm == 1536


def test_image_asks_for_no_more_shared_memory_than_any_gpu_that_runs_it_has() -> None:
    least = {(8, 0): 163, (8, 6): 99, (8, 9): 99, (9, 0): 227, (10, 0): 227, (12, 0): 99}
    for arch in ("sm_80", "sm_86", "sm_89", "sm_90a", "sm_100", "sm_120", "compute_90"):
        has = [kib for capability, kib in least.items() if devices.runs_on(arch, capability)]
        assert has
        assert devices.gpu(arch).shared_per_block_bytes <= min(has) << 10, arch


# --- specs ---


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("f32[2048,5120]", TensorSpec((2048, 5120))),
        ("bf16[4,6]s(1,4)", TensorSpec((4, 6), DataType.BFloat16, (1, 4))),
        ("i64[]", TensorSpec((), DataType.Int)),
        ("3", 3),
        ("1e-5", 1e-5),
        ("true", True),
        ("1+2j", 1 + 2j),
    ],
)
def test_specs_are_read(text: str, value: Any) -> None:
    assert parse(text) == value
    assert type(parse(text)) is type(value)


@pytest.mark.parametrize("text", ["f33[2]", "f32[2", "f32[-1]", "f32[2]s(1,2)", "x"])
def test_bad_specs_are_refused(text: str) -> None:
    with pytest.raises(InputError):
        parse(text)


def test_tensors_describe_themselves() -> None:
    array = np.zeros((4, 6), np.float16).T
    assert spec_of(array, 0) == TensorSpec((6, 4), DataType.Half, (1, 6))


@pytest.mark.parametrize("dtype", ["bfloat16", "bf16", DataType.BFloat16])
def test_dtypes_have_many_spellings(dtype: Any) -> None:
    assert as_data_type(dtype) is DataType.BFloat16
    assert as_data_type(np.float32) is DataType.Float
    assert as_data_type(np.dtype("int64")) is DataType.Int
