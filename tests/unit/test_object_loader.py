"""The loader of LLVM's object files: right code and constants, safe memory, damage refused."""

from __future__ import annotations

import ctypes
import math
import random
import struct
from pathlib import Path

import pytest

from fuser_direct import _ext
from fuser_direct.compiler import build_cpu
from fuser_direct.errors import CompileError

# Writes cos(x) * 1.1 + table[2] to memory: an external call, a constant and a table.
_MATH = """
@table = internal constant [4 x double] [double 1.5, double 2.5, double 3.5, double 4.5]
declare double @cos(double)
define internal double @helper(ptr %p) noinline {
  %x = load double, ptr %p
  %c = call double @cos(double %x)
  %s = fmul double %c, 1.1
  ret double %s
}
define void @kernel(ptr %args, i64 %begin, i64 %end, ptr %scratch) {
  %slot = getelementptr i64, ptr %args, i64 %begin
  %p = load ptr, ptr %slot
  %h = call double @helper(ptr %p)
  %entry = getelementptr [4 x double], ptr @table, i64 0, i64 %end
  %t = load double, ptr %entry
  %r = fadd double %h, %t
  store double %r, ptr %p
  ret void
}
"""


def host_object(text: str) -> bytes:
    return build_cpu.compile_object(text, build_cpu.host_target())


def run(kernel: _ext.CpuKernel, value: float, index: int) -> float:
    cell = ctypes.c_double(value)
    args = (ctypes.c_int64 * 1)(ctypes.addressof(cell))
    signature = ctypes.CFUNCTYPE(
        None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p
    )
    signature(kernel.address)(ctypes.addressof(args), 0, index, None)
    return cell.value


def test_calls_constants_and_tables_reach_their_targets() -> None:
    kernel = _ext.CpuKernel.from_object(host_object(_MATH), "kernel")
    for index, entry in enumerate((1.5, 2.5, 3.5, 4.5)):
        assert run(kernel, 0.7, index) == math.cos(0.7) * 1.1 + entry


def test_code_is_executable_and_not_writable() -> None:
    kernel = _ext.CpuKernel.from_object(host_object(_MATH), "kernel")
    for line in Path("/proc/self/maps").read_text().splitlines():
        first, last = (int(part, 16) for part in line.split()[0].split("-"))
        if first <= kernel.address < last:
            assert line.split()[1] == "r-xp"
            return
    pytest.fail("the code's mapping was not found")


def num_mappings() -> int:
    return len(Path("/proc/self/maps").read_text().splitlines())


def test_memory_is_given_back_with_the_kernel() -> None:
    image = host_object(_MATH)
    count = num_mappings()
    kernels = [_ext.CpuKernel.from_object(image, "kernel") for _ in range(300)]
    held = num_mappings()
    del kernels
    # Neighbouring mappings may be counted as one, so not all 300 show.
    assert held > count + 1
    assert num_mappings() < held
    assert num_mappings() < count + 20


@pytest.mark.parametrize("step", [1, 7])
def test_truncated_object_is_refused(step: int) -> None:
    image = host_object(_MATH)
    for size in range(0, len(image) - 64, step):
        with pytest.raises(CompileError, match="object of kernel kernel can't be loaded"):
            _ext.CpuKernel.from_object(image[:size], "kernel")


def test_flipped_bytes_never_reach_outside_of_the_object() -> None:
    # Either the damage is seen, or it is in code and constants, whose content is free.
    image = host_object(_MATH)
    rng = random.Random(0)
    refused = 0
    for _ in range(4000):
        damaged = bytearray(image)
        for _ in range(rng.choice((1, 1, 2, 8))):
            damaged[rng.randrange(len(damaged))] = rng.choice((0, 0xFF, rng.randrange(256)))
        try:
            _ext.CpuKernel.from_object(bytes(damaged), "kernel")
        except CompileError:
            refused += 1
    assert refused > 400


def test_every_field_of_the_headers_may_hold_any_value() -> None:
    image = host_object(_MATH)
    table = struct.unpack_from("<Q", image, 40)[0]
    places = [*range(64), *range(table, len(image))]
    for place in places:
        for value in (0, 1, 0x7F, 0xFF):
            damaged = bytearray(image)
            damaged[place] = value
            try:
                _ext.link_object(bytes(damaged), "kernel", 1 << 32)
            except CompileError as error:
                assert "can't be loaded" in str(error)  # noqa: PT017


def test_missing_function_is_named() -> None:
    text = _MATH.replace("@cos", "@no_such_function_here")
    with pytest.raises(CompileError, match="no_such_function_here is not in this process"):
        _ext.CpuKernel.from_object(host_object(text), "kernel")


def test_absent_kernel_is_named() -> None:
    with pytest.raises(CompileError, match="doesn't define function other"):
        _ext.CpuKernel.from_object(host_object(_MATH), "other")


def test_writable_data_is_refused() -> None:
    text = _MATH.replace("internal constant", "internal global") + (
        "define void @touch() {\n  store double 0.0, ptr @table\n  ret void\n}\n"
    )
    with pytest.raises(CompileError, match="writable or thread-local data"):
        _ext.CpuKernel.from_object(host_object(text), "kernel")


# --- AArch64, linked here and read back instruction by instruction ---


@pytest.fixture(scope="module")
def arm_object() -> bytes:
    binding = build_cpu._binding()
    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    target = binding.Target.from_triple("aarch64-unknown-linux-gnu")
    machine = target.create_target_machine(
        cpu="generic", features="+neon", opt=2, reloc="pic", codemodel="small"
    )
    text = _MATH.replace("1.1", "0x3FF199999999999A") + (
        "declare void @far()\n"
        "define ptr @taken() {\n  ret ptr @far\n}\n"
        'define void @kernel2(ptr %a, i64 %b, i64 %c, ptr %d) "target-features"="+neon" {\n'
        "  %v = load <4 x float>, ptr %a\n"
        "  %w = fmul <4 x float> %v, <float 1.25, float 2.75, float 3.5, float 7.125>\n"
        "  store <4 x float> %w, ptr %a\n  tail call void @far()\n  ret void\n}\n"
    )
    module = binding.parse_assembly(text)
    module.triple = "aarch64-unknown-linux-gnu"
    module.data_layout = str(machine.target_data)
    return bytes(machine.emit_object(module))


def words(block: bytes) -> list[int]:
    return list(struct.unpack(f"<{len(block) // 4}I", block[: len(block) // 4 * 4]))


def signed(value: int, bits: int) -> int:
    return value - (1 << bits) if value >> (bits - 1) else value


# A base on no page boundary of 4 GiB, so that every bit field is used.
_BASE = 0x7654_3210_F000


def adrp_targets(block: bytes) -> set[int]:
    """Addresses that an ADRP and the ADD or load right after its register's use refer to."""
    found, pages = set(), {}
    for number, word in enumerate(words(block)):
        address = _BASE + 4 * number
        if word & 0x9F000000 == 0x90000000:
            immediate = ((word >> 5) & 0x7FFFF) << 2 | (word >> 29) & 3
            pages[word & 31] = (address & ~0xFFF) + (signed(immediate, 21) << 12)
            continue
        register = (word >> 5) & 31
        low = (word >> 10) & 0xFFF
        if register in pages and word & 0xFF800000 == 0x91000000:  # add, 64 bits
            found.add(pages.pop(register) + low)
        elif register in pages and word & 0xFFC00000 in (0xF9400000, 0xFD400000):  # ldr x, d
            found.add(pages.pop(register) + 8 * low)
        elif register in pages and word & 0xFFC00000 == 0x3DC00000:  # ldr q
            found.add(pages.pop(register) + 16 * low)
    return found


def test_aarch64_constants_are_addressed_in_two_parts(arm_object: bytes) -> None:
    block = _ext.link_object(arm_object, "kernel", _BASE)
    targets = adrp_targets(block)
    table = struct.pack("<4d", 1.5, 2.5, 3.5, 4.5)
    vector = struct.pack("<4f", 1.25, 2.75, 3.5, 7.125)
    contents = [block[t - _BASE : t - _BASE + len(table)] for t in targets if t >= _BASE]
    assert table in contents
    assert any(content.startswith(vector) for content in contents)


def test_aarch64_calls_go_through_a_stub_to_the_function(arm_object: bytes) -> None:
    block = _ext.link_object(arm_object, "kernel", _BASE)
    code = words(block)
    called = set()
    for number, word in enumerate(code):
        if word & 0x7C000000 == 0x14000000:  # b and bl
            place = number + signed(word & 0x3FFFFFF, 26)
            # ldr x16, .+8; br x16; address
            if code[place : place + 2] == [0x58000050, 0xD61F0200]:
                called.add(struct.unpack_from("<Q", block, 4 * place + 8)[0])
    # cos and far, in the order in which they are asked for.
    assert called == {16, 32}


def test_aarch64_address_of_an_external_function_is_read_from_a_slot(arm_object: bytes) -> None:
    block = _ext.link_object(arm_object, "kernel", _BASE)
    slots = [t - _BASE for t in adrp_targets(block)]
    values = [
        struct.unpack_from("<Q", block, s)[0] for s in slots if s % 8 == 0 and s + 8 <= len(block)
    ]
    assert 16 in values or 32 in values


def test_object_for_another_processor_is_refused(arm_object: bytes) -> None:
    if build_cpu.host_target().triple.startswith("aarch64"):
        pytest.skip("that is this processor")
    with pytest.raises(CompileError, match="for another processor"):
        _ext.CpuKernel.from_object(arm_object, "kernel")
