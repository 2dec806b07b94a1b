"""`fd.ops`: the operations; importing this package imports neither PyTorch nor llvmlite."""
