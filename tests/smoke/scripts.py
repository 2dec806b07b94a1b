"""Scripts that the smoke tests run in processes of their own."""

from __future__ import annotations

# Importing and all that a program does before it runs anything.
CONSTRUCT = """
import sys
import fuser_direct
from fuser_direct import FusionDefinition, DataType

def small_fusion():
    fusion = fuser_direct.Fusion()
    with_guard = fuser_direct.FusionGuard(fusion)
    x = fuser_direct.define_tensor([-1], contiguity=[True])
    fusion.add_input(x)
    fusion.add_output(fuser_direct.ops.neg(x))
    del with_guard
    return fusion

# Arguments of the classes that can't do without any.
ARGUMENTS = {
    "FusionGuard": lambda: (fuser_direct.Fusion(),),
    "FusionExecutorCache": lambda: (small_fusion(),),
    "LRUCache": lambda: (16,),
    "GemmTile": lambda: (128, 128, 32),
    "MmaMacroEncode": lambda: (fuser_direct.MmaMacroArch.hopper, 64, 128, 16),
    "SupportedVectorization": lambda: (8, 8, 8),
    "TensorSpec": lambda: ((2, 3),),
}
# The package makes these and hands them out; a caller has nothing to make them of.
HANDED_OUT = {"Artifact", "FusionProfile", "HeuristicParams", "KernelProfile"}
def construct_all():
    made = []
    for name in fuser_direct.__all__:
        public = getattr(fuser_direct, name)
        # Nodes of the IR are made by definitions, never by a caller.
        if not isinstance(public, type) or issubclass(public, fuser_direct.Statement):
            continue
        if name in HANDED_OUT:
            continue
        if hasattr(public, "__members__"):
            public(0)
        else:
            public(*ARGUMENTS.get(name, tuple)())
        made.append(name)
    return made
"""

# Defining and printing, as the first lines of any program.
DEFINE = """
def define():
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=[True, True])
        bias = fd.define_tensor([-1], contiguity=[True])
        rows = fd.ops.broadcast_in_dim(bias, shape=x.shape(), broadcast_dims=[1])
        y = fd.ops.relu(fd.ops.add(fd.ops.mul(x, 2.0), rows))
        fd.add_output(y)
        fd.add_output(fd.ops.sum(y, dims=[1]))
    return fd

def define_and_print():
    fd = define()
    text = repr(fd)
    assert "fd.ops.relu(" in text and "fd.ops.sum(" in text, text
    assert str(fd.fusion.print_math())
    scope = {"FusionDefinition": FusionDefinition, "DataType": DataType}
    exec(text, scope)
    with FusionDefinition() as again:
        scope["nvfuser_fusion"](again)
    assert again.fusion == fd.fusion
    return fd
"""

# A CPU run on NumPy arrays, compared with NumPy in float64.
RUN_NUMPY = """
def run_numpy(fd):
    import numpy as np
    x = np.linspace(-3, 3, 5 * 37, dtype=np.float32).reshape(5, 37)
    bias = np.linspace(-1, 1, 37, dtype=np.float32)
    y, total = fd.execute([x, bias])
    expected = np.maximum(x.astype(np.float64) * 2 + bias, 0)
    np.testing.assert_allclose(np.asarray(y), expected, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(np.asarray(total), expected.sum(1), rtol=1e-5)
    assert np.asarray(y).dtype == np.float32 and np.asarray(y).shape == (5, 37)
"""

# Fails when a library of CUDA is mapped, or its Python packages are imported.
NO_CUDA_MAPPED = r"""
def assert_no_cuda():
    import re
    paths = {line.split()[-1] for line in open("/proc/self/maps") if "/" in line}
    libraries = r"/lib(cuda|cudart|nvrtc|nvidia|nvJitLink|nvptx|cublas|cudnn|cupti)[^/]*\.so"
    cuda = sorted(path for path in paths if re.search(libraries, path))
    assert not cuda, cuda
    packages = sorted(m for m in sys.modules if m == "cuda" or m.startswith(("cuda.", "pynvml")))
    assert not packages, packages
"""

EVERYTHING_BUT_A_GPU = (
    CONSTRUCT
    + DEFINE
    + RUN_NUMPY
    + NO_CUDA_MAPPED
    + """
made = construct_all()
for name in ("FusionDefinition", "KernelExecutor", "LaunchParams", "CompileParams", "FusionGuard"):
    assert name in made, (name, made)
fd = define_and_print()
assert_no_cuda()
run_numpy(fd)
assert_no_cuda()
print("passed")
"""
)

# Asks for GPU work in each way that a program can without a GPU tensor at hand; prints what came.
ASK_FOR_GPU = (
    CONSTRUCT
    + """
import json
from fuser_direct import _ext
from fuser_direct.compiler import build_cuda

with FusionDefinition() as fd:
    fd.add_output(fd.ops.full([4], 1.5, DataType.Float))

def said(call):
    try:
        call()
    except fuser_direct.CudaUnavailableError as error:
        assert isinstance(error, RuntimeError)
        return str(error)
    return None

print(json.dumps({
    "status": _ext.cuda_status(),
    "execute": said(lambda: fd.execute([], device=0)),
    "device_properties": said(lambda: _ext.device_properties(0)),
    "load": said(lambda: _ext.CudaKernel(b"", "k").load(0)),
    "arch_of": said(lambda: build_cuda.arch_of(0)),
}))
"""
)

FORK = """
import os

def in_child(work):
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            text = work() or "ok"
        except BaseException as error:
            text = repr(error)
        os.write(write, text.encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        text = pipe.read()
    _, status = os.waitpid(child, 0)
    assert status == 0, status
    return text
"""
