"""Text of kernels: LLVM IR for CPUs (`llvm`), CUDA C++ for GPUs."""
