#!/bin/sh
# Builds the extension for work in the tree: in BUILD_DIR (default /tmp/build-ext), then copies it
# next to the package's Python files. Extra arguments go to CMake, such as -DFUSER_DIRECT_WERROR=ON.
# PYTHON names the interpreter whose nanobind and ninja are used.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
build=${BUILD_DIR:-/tmp/build-ext}
python=${PYTHON:-python3}
cmake -S "$root" -B "$build" -G Ninja -DPython_EXECUTABLE="$(command -v "$python")" "$@" >/dev/null
cmake --build "$build" -j "${JOBS:-2}"
# A new file, not new bytes in the old one: processes that run the old one keep it.
cp "$build/_ext.abi3.so" "$root/python/fuser_direct/_ext.abi3.so.new"
mv "$root/python/fuser_direct/_ext.abi3.so.new" "$root/python/fuser_direct/_ext.abi3.so"
