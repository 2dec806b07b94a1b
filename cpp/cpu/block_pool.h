// Memory of CPU outputs. Large blocks are used again: the system's allocator maps them anew for
// each call, and the page faults then cost more than the kernel that fills them.
#pragma once

#include <cstddef>
#include <memory>

namespace fuser_direct::cpu {

// Smaller blocks come straight from the system's allocator, which reuses memory well enough.
constexpr size_t kMinPooledBytes = size_t{4} << 20;

// Owns memory aligned to a cache line, or to 2 MiB from the pool, to which it goes back when the
// owner goes, on whatever thread. Its contents are whatever the last user left.
class Block {
 public:
  Block() = default;
  // Throws std::bad_alloc.
  explicit Block(size_t bytes);
  ~Block();
  Block(Block&& other) noexcept;
  Block& operator=(Block&& other) noexcept;

  char* data() const noexcept { return data_; }
  size_t size() const noexcept { return size_; }

 private:
  char* data_ = nullptr;
  size_t size_ = 0;      // as asked for
  size_t capacity_ = 0;  // as allocated
};

// Most bytes that wait in the pool to be used again; blocks beyond it are freed. To begin with
// FUSER_DIRECT_CPU_POOL_BYTES, else 1 GiB or an eighth of the memory, whichever is less.
// Thread-safe, as are the others.
size_t pool_limit_bytes();
void set_pool_limit_bytes(size_t limit);

// Bytes that wait in the pool now.
size_t pool_bytes();

// Frees them.
void release_pool();

}  // namespace fuser_direct::cpu
