#include "cpu/object_loader.h"

#include <dlfcn.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <map>

#include "core/error.h"
#include "cpu/object_file.h"

namespace fuser_direct::cpu {

namespace {

// Pages from the system, given back at the end of life.
class Pages {
 public:
  explicit Pages(size_t size) : size_(size) {
    start_ = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (start_ == MAP_FAILED) fail("mmap");
  }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  ~Pages() { munmap(start_, size_); }

  uint8_t* data() const noexcept { return static_cast<uint8_t*>(start_); }

  // From here on the pages can be run and not be written.
  void make_executable() const {
    if (mprotect(start_, size_, PROT_READ | PROT_EXEC) != 0) fail("mprotect");
    __builtin___clear_cache(static_cast<char*>(start_), static_cast<char*>(start_) + size_);
  }

 private:
  [[noreturn]] static void fail(const char* call) {
    throw CompileError(std::string("CPU kernel: ") + call +
                       " of memory for code failed: " + std::strerror(errno));
  }

  void* start_;
  size_t size_;
};

uint64_t find_function(const std::string& name) {
  void* found = dlsym(RTLD_DEFAULT, name.c_str());
  if (found == nullptr) {
    // Python's executable need not be linked to it. Never closed: kernels call into it.
    static void* const libm = dlopen("libm.so.6", RTLD_LAZY | RTLD_LOCAL);
    if (libm != nullptr) found = dlsym(libm, name.c_str());
  }
  return reinterpret_cast<uint64_t>(found);
}

}  // namespace

LoadedFunction load_object(std::string_view object, const std::string& name) {
  const ObjectFile file(object, name);
  if (file.machine() != kHostMachine) {
    throw CompileError("object of kernel " + name +
                       " can't be loaded: it is for another processor");
  }
  const size_t offset = file.offset_of(name);
  auto pages = std::make_shared<Pages>(file.size_bytes());
  const auto address = reinterpret_cast<uint64_t>(pages->data());
  file.link(pages->data(), address, &find_function);
  pages->make_executable();
  return {address + offset, std::move(pages)};
}

std::string link_image(std::string_view object, const std::string& name, uint64_t address) {
  const ObjectFile file(object, name);
  std::string block(file.size_bytes(), '\0');
  std::map<std::string, uint64_t> known;
  file.link(reinterpret_cast<uint8_t*>(block.data()), address, [&](const std::string& symbol) {
    return known.emplace(symbol, 16 * (known.size() + 1)).first->second;
  });
  return block;
}

}  // namespace fuser_direct::cpu
