#include "cpu/object_file.h"

#include <cstring>

#include "core/error.h"
#include "cpu/relocate.h"

namespace fuser_direct::cpu {

namespace {

// Field offsets and constants of ELF64. Source: System V ABI, chapter 4 (object files).
constexpr uint64_t kHeaderBytes = 64, kSectionBytes = 64, kSymbolBytes = 24, kRelocationBytes = 24;
constexpr uint32_t kSymTab = 2, kStrTab = 3, kRela = 4, kNoBits = 8, kRel = 9;
constexpr uint64_t kWrite = 1, kAlloc = 2, kTls = 0x400;
constexpr uint16_t kUndefined = 0, kAbsolute = 0xfff1;
constexpr uint64_t kMaxAlignment = 4096;
// Far above any kernel; keeps sums of sizes from wrapping around.
constexpr uint64_t kMaxBytes = uint64_t{1} << 30;
// A stub: a jump through the address in its second half, which is also the symbol's slot.
constexpr size_t kStubBytes = 16, kSlotOffset = 8;

// A name from a file, as messages may hold it.
std::string shown(std::string_view name) {
  std::string text(name.substr(0, 100));
  for (char& c : text) {
    if (c < ' ' || c > '~') c = '?';
  }
  return text;
}

size_t round_up(size_t value, size_t alignment) {
  return (value + alignment - 1) / alignment * alignment;
}

}  // namespace

ObjectFile::ObjectFile(std::string_view bytes, std::string name)
    : bytes_(bytes), name_(std::move(name)) {
  if (bytes_.size() > kMaxBytes) refuse("it is larger than 1 GiB");
  read_sections();
  read_symbols();
  read_relocations();
  lay_out();
}

void ObjectFile::refuse(const std::string& why) const {
  throw CompileError("object of kernel " + name_ + " can't be loaded: " + why);
}

void ObjectFile::check_range(uint64_t offset, uint64_t size, const char* what) const {
  if (offset > bytes_.size() || size > bytes_.size() - offset) {
    refuse(std::string(what) + " reach past the end of the file");
  }
}

template <typename T>
T ObjectFile::read(uint64_t offset) const {
  check_range(offset, sizeof(T), "its fields");
  T value;
  std::memcpy(&value, bytes_.data() + offset, sizeof value);
  return value;
}

std::string_view ObjectFile::string_at(const Section& table, uint64_t offset) const {
  if (offset >= table.size) refuse("a name lies outside of its table");
  const std::string_view rest = bytes_.substr(table.file_offset + offset, table.size - offset);
  const size_t end = rest.find('\0');
  if (end == std::string_view::npos) refuse("a name has no end");
  return rest.substr(0, end);
}

void ObjectFile::read_sections() {
  constexpr std::string_view kMagic(
      "\x7f"
      "ELF\2\1\1",
      7);  // 64 bits, little endian, version 1
  if (bytes_.substr(0, kMagic.size()) != kMagic) refuse("it is no 64-bit little-endian ELF file");
  check_range(0, kHeaderBytes, "its header");
  if (read<uint16_t>(16) != 1) refuse("it is no relocatable object");
  machine_ = static_cast<Machine>(read<uint16_t>(18));
  if (machine_ != Machine::kX86_64 && machine_ != Machine::kAArch64) {
    refuse("it is for a processor other than x86-64 and AArch64");
  }
  const auto table = read<uint64_t>(40);
  const auto count = read<uint16_t>(60);
  if (read<uint16_t>(58) != kSectionBytes) refuse("its section headers have an unknown size");
  check_range(table, count * kSectionBytes, "its section headers");
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t at = table + i * kSectionBytes;
    Section s{};
    s.type = read<uint32_t>(at + 4);
    s.flags = read<uint64_t>(at + 8);
    s.file_offset = read<uint64_t>(at + 24);
    s.size = read<uint64_t>(at + 32);
    s.link = read<uint32_t>(at + 40);
    s.info = read<uint32_t>(at + 44);
    s.alignment = read<uint64_t>(at + 48);
    s.entry_bytes = read<uint64_t>(at + 56);
    s.is_loaded = (s.flags & kAlloc) != 0 && s.size != 0;
    if (s.alignment == 0) s.alignment = 1;
    if (s.type == kNoBits && !s.is_loaded) s.size = 0;
    if (s.type != kNoBits) check_range(s.file_offset, s.size, "a section's bytes");
    if (s.is_loaded) {
      if ((s.flags & (kWrite | kTls)) != 0 || s.type == kNoBits) {
        refuse("it has writable or thread-local data, which kernels don't have");
      }
      const bool is_power = (s.alignment & (s.alignment - 1)) == 0;
      if (!is_power || s.alignment > kMaxAlignment)
        refuse("a section's alignment is no power of 2");
    }
    sections_.push_back(s);
  }
}

void ObjectFile::read_symbols() {
  for (const Section& table : sections_) {
    if (table.type != kSymTab) continue;
    if (!symbols_.empty()) refuse("it has two symbol tables");
    if (table.entry_bytes != kSymbolBytes) refuse("its symbols have an unknown size");
    if (table.link >= sections_.size() || sections_[table.link].type != kStrTab) {
      refuse("its symbols have no names");
    }
    for (uint64_t at = 0; at + kSymbolBytes <= table.size; at += kSymbolBytes) {
      const uint64_t from = table.file_offset + at;
      Symbol symbol{};
      symbol.name = string_at(sections_[table.link], read<uint32_t>(from));
      const uint8_t kind = read<uint8_t>(from + 4) & 0xf;
      symbol.is_function = kind == 2;
      symbol.section = read<uint16_t>(from + 6);
      symbol.value = read<uint64_t>(from + 8);
      if (kind == 6) refuse("it has a thread-local symbol");
      if (symbol.section != kUndefined && symbol.section != kAbsolute) {
        if (symbol.section >= sections_.size()) refuse("a symbol's section doesn't exist");
        const Section& home = sections_[symbol.section];
        if (home.is_loaded && symbol.value > home.size) refuse("a symbol lies outside its section");
      }
      symbols_.push_back(symbol);
    }
  }
}

void ObjectFile::read_relocations() {
  for (const Section& table : sections_) {
    if (table.type != kRela && table.type != kRel) continue;
    if (table.info >= sections_.size()) refuse("relocations of a section that doesn't exist");
    if (!sections_[table.info].is_loaded) continue;
    if (table.type == kRel || table.entry_bytes != kRelocationBytes) {
      refuse("its relocations have an unknown size");
    }
    for (uint64_t at = 0; at + kRelocationBytes <= table.size; at += kRelocationBytes) {
      const uint64_t from = table.file_offset + at;
      const auto offset = read<uint64_t>(from);
      const auto info = read<uint64_t>(from + 8);
      Relocation relocation{};
      relocation.type = static_cast<uint32_t>(info);
      relocation.symbol = static_cast<uint32_t>(info >> 32);
      relocation.addend = read<int64_t>(from + 16);
      const uint64_t limit = sections_[table.info].size;
      if (reach_of(machine_, relocation.type) == Reach::kUnknown) {
        refuse("relocation type " + std::to_string(relocation.type) + " is unknown");
      }
      const size_t width = width_of(machine_, relocation.type);
      if (offset > limit || width > limit - offset) refuse("a relocation lies outside its section");
      if (relocation.symbol >= symbols_.size()) refuse("a relocation's symbol doesn't exist");
      relocation.place = offset;
      relocation.section = table.info;
      relocations_.push_back(relocation);
    }
  }
}

bool ObjectFile::needs_stub(const Relocation& relocation) const {
  const Reach reach = reach_of(machine_, relocation.type);
  return reach == Reach::kSlot ||
         (reach == Reach::kBranch && symbols_[relocation.symbol].section == kUndefined);
}

void ObjectFile::lay_out() {
  for (Section& section : sections_) {
    if (!section.is_loaded) continue;
    section.offset = round_up(size_, section.alignment);
    size_ = section.offset + section.size;
    if (size_ > kMaxBytes) refuse("its sections are larger than 1 GiB");
  }
  size_ = round_up(size_, kStubBytes);
  for (const Relocation& relocation : relocations_) {
    Symbol& symbol = symbols_[relocation.symbol];
    if (symbol.has_stub || !needs_stub(relocation)) continue;
    symbol.has_stub = true;
    symbol.stub = size_;
    size_ += kStubBytes;
  }
}

uint64_t ObjectFile::value_of(const Symbol& symbol, uint64_t address,
                              const Resolver& resolver) const {
  if (symbol.section == kAbsolute) return symbol.value;
  if (symbol.section != kUndefined) {
    const Section& home = sections_[symbol.section];
    if (!home.is_loaded) refuse("symbol " + shown(symbol.name) + " is in no loaded section");
    return address + home.offset + symbol.value;
  }
  const uint64_t found = symbol.name.empty() ? 0 : resolver(std::string(symbol.name));
  if (found == 0) refuse("function " + shown(symbol.name) + " is not in this process");
  return found;
}

void ObjectFile::write_stub(uint8_t* at, uint64_t target) const {
  // x86-64: jmp *2(%rip), then a trap. AArch64: ldr x16, .+8; br x16.
  constexpr uint8_t kX86[] = {0xff, 0x25, 0x02, 0x00, 0x00, 0x00, 0x0f, 0x0b};
  constexpr uint8_t kArm[] = {0x50, 0x00, 0x00, 0x58, 0x00, 0x02, 0x1f, 0xd6};
  static_assert(sizeof kX86 == kSlotOffset && sizeof kArm == kSlotOffset);
  std::memcpy(at, machine_ == Machine::kX86_64 ? kX86 : kArm, kSlotOffset);
  std::memcpy(at + kSlotOffset, &target, sizeof target);
}

void ObjectFile::link(uint8_t* block, uint64_t address, const Resolver& resolver) const {
  for (const Section& section : sections_) {
    if (!section.is_loaded) continue;
    std::memcpy(block + section.offset, bytes_.data() + section.file_offset, section.size);
  }
  for (const Symbol& symbol : symbols_) {
    if (symbol.has_stub) write_stub(block + symbol.stub, value_of(symbol, address, resolver));
  }
  for (const Relocation& relocation : relocations_) {
    const Symbol& symbol = symbols_[relocation.symbol];
    const size_t place = sections_[relocation.section].offset + relocation.place;
    uint64_t target;
    if (!needs_stub(relocation)) {
      target = value_of(symbol, address, resolver);
    } else {
      const bool is_slot = reach_of(machine_, relocation.type) == Reach::kSlot;
      target = address + symbol.stub + (is_slot ? kSlotOffset : 0);
    }
    target += static_cast<uint64_t>(relocation.addend);
    if (!relocate(machine_, relocation.type, block + place, address + place, target)) {
      refuse("relocation type " + std::to_string(relocation.type) + " can't reach " +
             shown(symbol.name));
    }
  }
}

size_t ObjectFile::offset_of(const std::string& wanted) const {
  for (const Symbol& symbol : symbols_) {
    if (symbol.name != wanted || !symbol.is_function || symbol.section == kUndefined) continue;
    if (symbol.section == kAbsolute || !sections_[symbol.section].is_loaded) break;
    if (symbol.value >= sections_[symbol.section].size) break;
    return sections_[symbol.section].offset + symbol.value;
  }
  refuse("it doesn't define function " + wanted);
}

}  // namespace fuser_direct::cpu
