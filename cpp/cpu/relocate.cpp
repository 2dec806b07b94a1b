#include "cpu/relocate.h"

#include <cstring>

namespace fuser_direct::cpu {

namespace {

// Names as in the two ABI documents, without their R_X86_64_ and R_AARCH64_.
namespace x86 {
enum : uint32_t {
  k64 = 1,
  kPc32 = 2,
  kPlt32 = 4,
  kGotPcRel = 9,
  k32 = 10,
  k32S = 11,
  kPc64 = 24,
  kGotPcRelX = 41,
  kRexGotPcRelX = 42,
};
}  // namespace x86

namespace arm {
enum : uint32_t {
  kAbs64 = 257,
  kAbs32 = 258,
  kPrel64 = 260,
  kPrel32 = 261,
  kLdPrelLo19 = 273,
  kAdrPrelLo21 = 274,
  kAdrPrelPgHi21 = 275,
  kAddAbsLo12Nc = 277,
  kLdst8AbsLo12Nc = 278,
  kCondBr19 = 280,
  kJump26 = 282,
  kCall26 = 283,
  kLdst16AbsLo12Nc = 284,
  kLdst32AbsLo12Nc = 285,
  kLdst64AbsLo12Nc = 286,
  kLdst128AbsLo12Nc = 299,
  kAdrGotPage = 311,
  kLd64GotLo12Nc = 312,
};
}  // namespace arm

bool fits_signed(int64_t value, int bits) noexcept {
  const int64_t limit = int64_t{1} << (bits - 1);
  return value >= -limit && value < limit;
}

template <typename T>
void put(uint8_t* place, T value) noexcept {
  std::memcpy(place, &value, sizeof value);
}

bool put_signed32(uint8_t* place, int64_t value) noexcept {
  put(place, static_cast<int32_t>(value));
  return fits_signed(value, 32);
}

bool put_unsigned32(uint8_t* place, uint64_t value) noexcept {
  put(place, static_cast<uint32_t>(value));
  return value >> 32 == 0;
}

bool relocate_x86(uint32_t type, uint8_t* place, uint64_t address, uint64_t target) noexcept {
  switch (type) {
    case x86::k64:
      put(place, target);
      return true;
    case x86::kPc64:
      put(place, target - address);
      return true;
    case x86::k32:
      return put_unsigned32(place, target);
    case x86::k32S:
      return put_signed32(place, static_cast<int64_t>(target));
    default:
      return put_signed32(place, static_cast<int64_t>(target - address));
  }
}

// Replaces `bits` bits of the instruction from bit `at` on.
void put_field(uint8_t* place, int at, int bits, uint64_t value) noexcept {
  uint32_t instruction;
  std::memcpy(&instruction, place, sizeof instruction);
  const uint32_t mask = ((uint32_t{1} << bits) - 1) << at;
  instruction = (instruction & ~mask) | ((static_cast<uint32_t>(value) << at) & mask);
  put(place, instruction);
}

// The immediate of ADR and ADRP: two low bits at 29, nineteen at 5.
bool put_adr(uint8_t* place, int64_t value) noexcept {
  put_field(place, 29, 2, static_cast<uint64_t>(value));
  put_field(place, 5, 19, static_cast<uint64_t>(value >> 2));
  return fits_signed(value, 21);
}

bool put_words(uint8_t* place, int at, int bits, int64_t distance) noexcept {
  put_field(place, at, bits, static_cast<uint64_t>(distance >> 2));
  return distance % 4 == 0 && fits_signed(distance >> 2, bits);
}

// The low 12 bits of an address, in units of 1 << shift bytes.
bool put_low12(uint8_t* place, uint64_t target, int shift) noexcept {
  put_field(place, 10, 12, (target & 0xfff) >> shift);
  return (target & ((uint64_t{1} << shift) - 1)) == 0;
}

int64_t pages_between(uint64_t address, uint64_t target) noexcept {
  return static_cast<int64_t>((target & ~uint64_t{0xfff}) - (address & ~uint64_t{0xfff})) >> 12;
}

bool relocate_arm(uint32_t type, uint8_t* place, uint64_t address, uint64_t target) noexcept {
  const auto distance = static_cast<int64_t>(target - address);
  switch (type) {
    case arm::kAbs64:
      put(place, target);
      return true;
    case arm::kAbs32:
      return put_unsigned32(place, target);
    case arm::kPrel64:
      put(place, distance);
      return true;
    case arm::kPrel32:
      return put_signed32(place, distance);
    case arm::kAdrPrelLo21:
      return put_adr(place, distance);
    case arm::kAdrPrelPgHi21:
    case arm::kAdrGotPage:
      return put_adr(place, pages_between(address, target));
    case arm::kLdPrelLo19:
    case arm::kCondBr19:
      return put_words(place, 5, 19, distance);
    case arm::kJump26:
    case arm::kCall26:
      return put_words(place, 0, 26, distance);
    case arm::kLdst16AbsLo12Nc:
      return put_low12(place, target, 1);
    case arm::kLdst32AbsLo12Nc:
      return put_low12(place, target, 2);
    case arm::kLdst64AbsLo12Nc:
    case arm::kLd64GotLo12Nc:
      return put_low12(place, target, 3);
    case arm::kLdst128AbsLo12Nc:
      return put_low12(place, target, 4);
    default:
      return put_low12(place, target, 0);
  }
}

Reach reach_x86(uint32_t type) noexcept {
  switch (type) {
    case x86::k64:
    case x86::kPc32:
    case x86::k32:
    case x86::k32S:
    case x86::kPc64:
      return Reach::kDirect;
    case x86::kPlt32:
      return Reach::kBranch;
    case x86::kGotPcRel:
    case x86::kGotPcRelX:
    case x86::kRexGotPcRelX:
      return Reach::kSlot;
    default:
      return Reach::kUnknown;
  }
}

Reach reach_arm(uint32_t type) noexcept {
  switch (type) {
    case arm::kAbs64:
    case arm::kAbs32:
    case arm::kPrel64:
    case arm::kPrel32:
    case arm::kLdPrelLo19:
    case arm::kAdrPrelLo21:
    case arm::kAdrPrelPgHi21:
    case arm::kAddAbsLo12Nc:
    case arm::kLdst8AbsLo12Nc:
    case arm::kCondBr19:
    case arm::kLdst16AbsLo12Nc:
    case arm::kLdst32AbsLo12Nc:
    case arm::kLdst64AbsLo12Nc:
    case arm::kLdst128AbsLo12Nc:
      return Reach::kDirect;
    case arm::kJump26:
    case arm::kCall26:
      return Reach::kBranch;
    case arm::kAdrGotPage:
    case arm::kLd64GotLo12Nc:
      return Reach::kSlot;
    default:
      return Reach::kUnknown;
  }
}

}  // namespace

Reach reach_of(Machine machine, uint32_t type) noexcept {
  return machine == Machine::kX86_64 ? reach_x86(type) : reach_arm(type);
}

size_t width_of(Machine machine, uint32_t type) noexcept {
  if (machine == Machine::kX86_64) return type == x86::k64 || type == x86::kPc64 ? 8 : 4;
  return type == arm::kAbs64 || type == arm::kPrel64 ? 8 : 4;
}

bool relocate(Machine machine, uint32_t type, uint8_t* place, uint64_t address,
              uint64_t target) noexcept {
  return machine == Machine::kX86_64 ? relocate_x86(type, place, address, target)
                                     : relocate_arm(type, place, address, target);
}

}  // namespace fuser_direct::cpu
