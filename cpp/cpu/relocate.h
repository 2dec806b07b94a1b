// The arithmetic of ELF relocations, for the kinds that LLVM's position-independent kernels use.
// Source: System V ABI, AMD64 supplement, 4.4; ELF for the Arm 64-bit Architecture, 5.7.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/object_file.h"

namespace fuser_direct::cpu {

// What a relocation needs of its symbol.
enum class Reach {
  kUnknown,  // a kind that isn't handled
  kDirect,   // the address itself
  kBranch,   // an address to branch to: a stub near by serves for one that is far
  kSlot,     // the address of a slot that holds the address
};

Reach reach_of(Machine machine, uint32_t type) noexcept;

// Bytes that a relocation of this kind alters.
size_t width_of(Machine machine, uint32_t type) noexcept;

// Puts `target` (symbol or slot, plus addend) into the bytes at `place`, which run at `address`.
// False if it is out of the field's reach or not aligned as the instruction needs it.
bool relocate(Machine machine, uint32_t type, uint8_t* place, uint64_t address,
              uint64_t target) noexcept;

}  // namespace fuser_direct::cpu
