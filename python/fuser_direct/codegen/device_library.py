"""The device functions of `codegen/device/*.cuh`: which of them a kernel's text needs.

A file is a sequence of blocks; a line `//- name name... [tag]` opens one and says which names it
defines. Several blocks may share a name, such as a function's overloads on complex numbers, which
are tagged [complex].
"""

from __future__ import annotations

import re
from collections import Counter
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
# Large functions are marked `inline` only, small ones __forceinline__.
_LARGE = "__device__ inline "
# Uses of one large function in a kernel's text beyond which it is called, not inlined. Each use
# stands in an unrolled loop, and what NVRTC takes grows faster than their number: 0.08 s for one
# sine, 0.3 for eight, 16 for a hundred; and 0.13 for a hundred calls.
_MAX_INLINED = 4


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
    is in `tags`. Large functions that it uses often aren't inlined, to the same results.
    """
    uses = Counter(_NAME.findall(kernel))
    offered = [block for block in blocks() if not block.tag or block.tag in tags]
    wanted = set(uses)
    taken: set[int] = set()
    while True:
        new = [n for n, block in enumerate(offered) if n not in taken and block.names & wanted]
        if not new:
            return "\n".join(_qualified(offered[n], uses) for n in sorted(taken))
        taken.update(new)
        wanted.update(*(offered[n].uses for n in new))


def _qualified(block: Block, uses: Counter[str]) -> str:
    """The text of `block`, its functions not inlined where one of them is used often."""
    is_often = any(uses[name] > _MAX_INLINED for name in block.names)
    return block.text.replace(_LARGE, "__device__ __noinline__ ") if is_often else block.text
