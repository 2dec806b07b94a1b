// The programs of one executor, by the key of the calls that they serve.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <vector>

#include "executor/program.h"
#include "executor/signature.h"

namespace fuser_direct {

// Programs kept at most; the oldest goes first.
constexpr size_t kMaxPrograms = 4096;

// A compile in progress, which the callers of the same key wait for.
class PendingProgram {
 public:
  PendingProgram() : owner_(std::this_thread::get_id()) {}

  // Blocks until the compile has ended, well or not. Hold no lock of the interpreter.
  void wait();
  bool is_mine() const { return owner_ == std::this_thread::get_id(); }

 private:
  friend class CallCache;
  void end();

  std::thread::id owner_;
  std::mutex mutex_;
  std::condition_variable ended_;
  bool has_ended_ = false;
};

struct CacheCounters {
  int64_t calls = 0;
  int64_t hits = 0;
  int64_t misses = 0;
};

// Thread-safe; its lock is held for a look-up only. Failed compiles leave no trace.
class CallCache {
 public:
  using ProgramPtr = std::shared_ptr<const Program>;

  // What a caller is to do: run `program`; or wait for `pending` and ask again; or, with both null,
  // compile and then call `fulfil` or `abandon`.
  struct Claim {
    ProgramPtr program;
    std::shared_ptr<PendingProgram> pending;
  };

  // Counts a call the first time it asks (`is_retry` false).
  Claim claim(const Key& key, bool is_retry);

  // Null when there is none; counts nothing.
  ProgramPtr find(const Key& key) const;

  void fulfil(const Key& key, ProgramPtr program);
  void abandon(const Key& key);

  CacheCounters counters() const;

  // Forgets all programs and gives them to the caller to destroy.
  std::vector<ProgramPtr> clear();

 private:
  struct Entry {
    Key key;
    ProgramPtr program;
    std::shared_ptr<PendingProgram> pending;
  };
  using Entries = std::list<Entry>;

  struct View {
    const Key* key;
  };
  struct Hash {
    size_t operator()(const View& view) const {
      return hash_key(view.key->data(), view.key->size());
    }
  };
  struct Equal {
    bool operator()(const View& a, const View& b) const { return *a.key == *b.key; }
  };

  void erase(Entries::iterator entry);

  mutable std::mutex mutex_;
  Entries entries_;  // oldest first; the index refers to their keys
  std::unordered_map<View, Entries::iterator, Hash, Equal> index_;
  CacheCounters counters_;
};

}  // namespace fuser_direct
