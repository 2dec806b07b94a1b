#!/usr/bin/env bash
# Runs the smoke tests on the installed wheel, with the Python that is first on PATH; wants pytest and
# pytest-timeout beside it, and nothing else. Run it outside the source tree.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
python -c 'import sys; print("smoke tests on Python", sys.version)'
python -m pytest -p no:cacheprovider -c "$root/pyproject.toml" "$root/tests/smoke"
