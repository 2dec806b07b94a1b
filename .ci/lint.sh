#!/usr/bin/env bash
# Checks the text of the sources. The linters of requirements-lint.txt must be on PATH.
set -euo pipefail
cd "$(dirname "$0")/.."
ruff check .
find cpp -name '*.h' -print0 -o -name '*.cpp' -print0 | xargs -0 --no-run-if-empty \
  clang-format --dry-run --Werror
