"""What all tests share: they compile afresh and leave the user's kernel cache alone."""

from __future__ import annotations

import os

# Before anything is compiled; tests of the cache itself set their own folder.
os.environ.setdefault("FUSER_DIRECT_CACHE", "0")
