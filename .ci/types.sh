#!/usr/bin/env bash
# Checks the types of the installed package, its generated stub included. mypy must be on PATH.
#
# usage: types.sh [PYTHON]      PYTHON: the interpreter that has the package; default: the first on PATH
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
# Elsewhere, since the tree's own package has no extension beside it.
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
mypy --config-file "$root/pyproject.toml" --python-executable "${1:-$(command -v python)}" \
  --cache-dir="$work" --package fuser_direct
