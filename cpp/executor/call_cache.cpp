#include "executor/call_cache.h"

#include <utility>

namespace fuser_direct {

void PendingProgram::wait() {
  std::unique_lock<std::mutex> lock(mutex_);
  ended_.wait(lock, [this] { return has_ended_; });
}

void PendingProgram::end() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    has_ended_ = true;
  }
  ended_.notify_all();
}

CallCache::Claim CallCache::claim(const Key& key, bool is_retry) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!is_retry) ++counters_.calls;
  const auto found = index_.find(View{&key});
  if (found == index_.end()) {
    ++counters_.misses;
    entries_.push_back(Entry{key, nullptr, std::make_shared<PendingProgram>()});
    const auto entry = std::prev(entries_.end());
    index_.emplace(View{&entry->key}, entry);
    return {};
  }
  const Entry& entry = *found->second;
  if (entry.program == nullptr) return {nullptr, entry.pending};
  ++counters_.hits;
  return {entry.program, nullptr};
}

CallCache::ProgramPtr CallCache::find(const Key& key) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = index_.find(View{&key});
  return found == index_.end() ? nullptr : found->second->program;
}

void CallCache::erase(Entries::iterator entry) {
  index_.erase(View{&entry->key});
  entries_.erase(entry);
}

void CallCache::fulfil(const Key& key, ProgramPtr program) {
  std::shared_ptr<PendingProgram> pending;
  ProgramPtr evicted;  // destroyed after the lock is gone: it may run code of the caller's
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = index_.find(View{&key});
    if (found == index_.end()) return;  // cleared meanwhile
    pending = std::exchange(found->second->pending, nullptr);
    found->second->program = std::move(program);
    const auto oldest = entries_.begin();
    if (entries_.size() > kMaxPrograms && oldest->program != nullptr) {
      evicted = oldest->program;
      erase(oldest);
    }
  }
  if (pending != nullptr) pending->end();
}

void CallCache::abandon(const Key& key) {
  std::shared_ptr<PendingProgram> pending;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = index_.find(View{&key});
    if (found == index_.end()) return;
    pending = found->second->pending;
    erase(found->second);
  }
  if (pending != nullptr) pending->end();
}

CacheCounters CallCache::counters() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return counters_;
}

std::vector<CallCache::ProgramPtr> CallCache::clear() {
  std::vector<ProgramPtr> programs;
  std::vector<std::shared_ptr<PendingProgram>> pending;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (Entry& entry : entries_) {
      programs.push_back(std::move(entry.program));
      if (entry.pending != nullptr) pending.push_back(std::move(entry.pending));
    }
    index_.clear();
    entries_.clear();
  }
  for (const auto& each : pending) each->end();
  return programs;
}

}  // namespace fuser_direct
