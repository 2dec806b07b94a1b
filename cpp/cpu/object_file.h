// A relocatable ELF object as LLVM writes it for a kernel: parsed with every field checked against
// the bytes that are there, laid out as one block, and relocated for an address. No memory is
// mapped and no host symbol is looked up here, so objects for other processors can be linked too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace fuser_direct::cpu {

enum class Machine : uint16_t { kX86_64 = 62, kAArch64 = 183 };

// The processor this library is built for; 0 if no object can be linked for it.
#if defined(__x86_64__)
constexpr Machine kHostMachine{62};
#elif defined(__aarch64__)
constexpr Machine kHostMachine{183};
#else
constexpr Machine kHostMachine{0};
#endif

class ObjectFile {
 public:
  // Address of a function outside of the object; 0 if there is none.
  using Resolver = std::function<uint64_t(const std::string& name)>;

  // Parses `bytes`, which must stay alive. `name` stands in messages. Throws CompileError saying
  // which part is damaged or of a kind that kernels don't have (writable or thread-local data).
  ObjectFile(std::string_view bytes, std::string name);

  Machine machine() const noexcept { return machine_; }

  // Bytes that the linked code and its constants take; alignment is at most a page.
  size_t size_bytes() const noexcept { return size_; }

  // Writes the linked object to `block` (size_bytes() zeroed bytes), for a run at `address`.
  // Throws CompileError for a symbol that `resolver` doesn't know and for a relocation that is
  // unknown or out of reach.
  void link(uint8_t* block, uint64_t address, const Resolver& resolver) const;

  // Offset in the block of the function called `symbol`. Throws CompileError if it isn't defined.
  size_t offset_of(const std::string& symbol) const;

 private:
  struct Section {
    uint32_t type;
    uint64_t flags, file_offset, size, alignment;
    uint32_t link, info;
    uint64_t entry_bytes;
    size_t offset;  // in the block, when it is loaded
    bool is_loaded;
  };
  struct Symbol {
    std::string_view name;
    uint16_t section;  // 0: undefined
    bool is_function;
    uint64_t value;
    size_t stub;  // offset in the block of its stub, when it has one
    bool has_stub;
  };
  struct Relocation {
    uint64_t place;  // offset in its section
    uint32_t section, type, symbol;
    int64_t addend;
  };

  [[noreturn]] void refuse(const std::string& why) const;
  template <typename T>
  T read(uint64_t offset) const;
  std::string_view string_at(const Section& table, uint64_t offset) const;
  void check_range(uint64_t offset, uint64_t size, const char* what) const;
  void read_sections();
  void read_symbols();
  void read_relocations();
  void lay_out();
  bool needs_stub(const Relocation& relocation) const;
  uint64_t value_of(const Symbol& symbol, uint64_t address, const Resolver& resolver) const;
  void write_stub(uint8_t* at, uint64_t target) const;

  std::string_view bytes_;
  std::string name_;
  Machine machine_ = kHostMachine;
  std::vector<Section> sections_;
  std::vector<Symbol> symbols_;
  std::vector<Relocation> relocations_;
  size_t size_ = 0;
};

}  // namespace fuser_direct::cpu
