#include "cpu/block_pool.h"

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

namespace fuser_direct::cpu {

namespace {

constexpr size_t kLineBytes = 64;
constexpr size_t kHugePageBytes = size_t{2} << 20;
constexpr size_t kDefaultLimitBytes = size_t{1} << 30;

size_t default_limit() {
  if (const char* text = std::getenv("FUSER_DIRECT_CPU_POOL_BYTES")) {
    return static_cast<size_t>(std::max(0LL, std::strtoll(text, nullptr, 10)));
  }
  const long pages = sysconf(_SC_PHYS_PAGES);
  const long page_bytes = sysconf(_SC_PAGESIZE);
  const size_t memory =
      static_cast<size_t>(std::max(0L, pages)) * static_cast<size_t>(std::max(0L, page_bytes));
  return std::min(kDefaultLimitBytes, memory / 8);
}

bool is_pooled(size_t bytes) { return bytes >= kMinPooledBytes; }

// Small sizes are rounded up to whole cache lines; those of the pool, so that blocks of close sizes
// serve each other, to whole huge pages and to a sixteenth of the size or a little more.
size_t capacity_for(size_t bytes) {
  size_t step = is_pooled(bytes) ? kHugePageBytes : kLineBytes;
  while (is_pooled(bytes) && step * 16 <= bytes) step *= 2;
  return std::max<size_t>(1, (bytes + step - 1) / step) * step;
}

char* allocate(size_t alignment, size_t bytes) {
  void* block = std::aligned_alloc(alignment, bytes);
  if (block == nullptr) throw std::bad_alloc();
  return static_cast<char*>(block);
}

class Pool {
 public:
  char* take(size_t capacity) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      const auto found = waiting_.find(capacity);
      if (found != waiting_.end() && !found->second.empty()) {
        char* block = found->second.back();
        found->second.pop_back();
        waiting_bytes_ -= capacity;
        return block;
      }
    }
    char* block = allocate(kHugePageBytes, capacity);
    madvise(block, capacity, MADV_HUGEPAGE);  // only advice: without it all works, more slowly
    return block;
  }

  void give(char* block, size_t capacity) noexcept {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (waiting_bytes_ + capacity <= limit_ && keep(block, capacity)) return;
    }
    std::free(block);
  }

  void release() {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (auto& [capacity, blocks] : waiting_) {
      for (char* block : blocks) std::free(block);
    }
    waiting_.clear();
    waiting_bytes_ = 0;
  }

  void set_limit(size_t limit) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      limit_ = limit;
      if (waiting_bytes_ <= limit_) return;
    }
    release();
  }

  size_t limit() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return limit_;
  }

  size_t waiting_bytes() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return waiting_bytes_;
  }

  // Held over a fork, so that the child doesn't get it locked by a thread that it doesn't have.
  std::mutex& mutex() { return mutex_; }

 private:
  bool keep(char* block, size_t capacity) noexcept {
    try {
      waiting_[capacity].push_back(block);
    } catch (const std::bad_alloc&) {
      return false;
    }
    waiting_bytes_ += capacity;
    return true;
  }

  std::mutex mutex_;
  std::map<size_t, std::vector<char*>> waiting_;  // by capacity
  size_t waiting_bytes_ = 0;
  size_t limit_ = default_limit();
};

Pool& pool() {
  // Never destroyed: tensors over its blocks may be freed after static objects are gone.
  static Pool* const instance = new Pool;
  return *instance;
}

const int kForkHandler =
    pthread_atfork([] { pool().mutex().lock(); }, [] { pool().mutex().unlock(); },
                   [] { pool().mutex().unlock(); });

}  // namespace

Block::Block(size_t bytes) : size_(bytes), capacity_(capacity_for(bytes)) {
  data_ = is_pooled(capacity_) ? pool().take(capacity_) : allocate(kLineBytes, capacity_);
}

Block::~Block() {
  if (data_ == nullptr) return;
  if (is_pooled(capacity_)) {
    pool().give(data_, capacity_);
  } else {
    std::free(data_);
  }
}

Block::Block(Block&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      capacity_(std::exchange(other.capacity_, 0)) {}

Block& Block::operator=(Block&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(capacity_, other.capacity_);
  return *this;
}

size_t pool_limit_bytes() { return pool().limit(); }

void set_pool_limit_bytes(size_t limit) { pool().set_limit(limit); }

size_t pool_bytes() { return pool().waiting_bytes(); }

void release_pool() { pool().release(); }

}  // namespace fuser_direct::cpu
