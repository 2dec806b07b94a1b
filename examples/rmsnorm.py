"""RMSNorm with NumPy arrays: define once, execute on any number of rows and columns.

python examples/rmsnorm.py
"""

from __future__ import annotations

import numpy as np

from fuser_direct import DataType, FusionDefinition

EPS = 1e-5


def rmsnorm() -> FusionDefinition:
    """y = x / sqrt(mean(x^2) + eps) * weight over the rows of x [i0, i1]; weight [i1]."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True, dtype=DataType.Float)
        weight = fd.define_tensor([-1], contiguity=True, dtype=DataType.Float)
        total = fd.ops.sum(fd.ops.mul(x, x), dims=[1], keepdim=True)
        mean_square = fd.ops.div(total, fd.ops.size(x, 1))
        scale = fd.ops.rsqrt(fd.ops.add(mean_square, EPS))
        fd.add_output(fd.ops.mul(fd.ops.mul(x, scale), weight))
    return fd


def main() -> None:
    """Runs two shapes of one definition, and checks each against NumPy in float64."""
    fd = rmsnorm()
    generator = np.random.default_rng(0)
    for rows, columns in ((8, 64), (100, 1000)):
        x = generator.standard_normal((rows, columns), dtype=np.float32)
        weight = generator.standard_normal(columns, dtype=np.float32)
        (y,) = fd.execute([x, weight])
        wide = x.astype(np.float64)
        expected = wide / np.sqrt(np.mean(wide**2, axis=1, keepdims=True) + EPS) * weight
        print(f"{rows}x{columns}: largest error {np.max(np.abs(y - expected)):.1e}")
        np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)
    print(*(f"{kernel.name}: {kernel.scheduler}" for kernel in fd.fec.kernels()), sep="\n")


if __name__ == "__main__":
    main()
