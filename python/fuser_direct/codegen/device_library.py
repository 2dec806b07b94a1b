"""The device functions of `codegen/device/*.cuh`: which of them a kernel's text needs.

A file is a sequence of blocks; a line `//- name name... [tag]` opens one and says which names it
defines. Several blocks may share a name, such as a function's overloads on complex numbers, which
are tagged [complex].
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from functools import cache
from importlib import resources

# In the order in which blocks are pasted: each uses only what stands above it.
_FILES = (
    "memory.cuh",
    "copies.cuh",
    "tile.cuh",
    "complex.cuh",
    "math.cuh",
    "fast_math.cuh",
    "philox.cuh",
    "reduce.cuh",
)
_OPENING = re.compile(r"^//- ([\w ]+?)(?: \[(\w+)\])?$", re.MULTILINE)
_NAME = re.compile(r"\bfd_\w+")


@dataclass(frozen=True, slots=True)
class Block:
    """A piece of device code: the names it defines, the tag it needs ("" for none), its text and
    the names it uses.
    """

    names: frozenset[str]
    tag: str
    text: str
    uses: frozenset[str]


@cache
def blocks() -> tuple[Block, ...]:
    """Every block of the library, in pasting order."""
    folder = resources.files("fuser_direct.codegen") / "device"
    found = []
    for name in _FILES:
        parts = _OPENING.split((folder / name).read_text(encoding="utf-8"))
        # [head, names, tag, text, names, tag, text, ...]
        for names, tag, text in zip(parts[1::3], parts[2::3], parts[3::3], strict=True):
            found.append(
                Block(
                    frozenset(names.split()),
                    tag or "",
                    text.strip() + "\n",
                    frozenset(_NAME.findall(text)),
                )
            )
    return tuple(found)


def paste(kernel: str, tags: Collection[str]) -> str:
    """The blocks that `kernel`, and what is pasted for it, names; tagged ones only where their tag
    is in `tags`.
    """
    offered = [block for block in blocks() if not block.tag or block.tag in tags]
    wanted = set(_NAME.findall(kernel))
    taken: set[int] = set()
    while True:
        new = [n for n, block in enumerate(offered) if n not in taken and block.names & wanted]
        if not new:
            return "\n".join(offered[n].text for n in sorted(taken))
        taken.update(new)
        wanted.update(*(offered[n].uses for n in new))
