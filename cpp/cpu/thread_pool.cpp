#include "cpu/thread_pool.h"

#include <algorithm>
#include <system_error>

namespace fuser_direct::cpu {

ThreadPool::~ThreadPool() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_stopping_ = true;
  }
  started_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

int ThreadPool::grow(int workers) {
  try {
    while (static_cast<int>(workers_.size()) < workers) {
      const int number = static_cast<int>(workers_.size()) + 1;
      workers_.emplace_back([this, number] { work(number); });
    }
  } catch (const std::system_error&) {
    // No more threads to be had: those that there are do the work.
  }
  return static_cast<int>(workers_.size());
}

void ThreadPool::work(int number) {
  int64_t seen = 0;
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    started_.wait(lock, [&] { return is_stopping_ || generation_ != seen; });
    if (is_stopping_) return;
    seen = generation_;
    if (number >= count_) continue;
    const std::function<void(int)>& body = *body_;
    lock.unlock();
    body(number);
    lock.lock();
    if (--unfinished_ == 0) finished_.notify_one();
  }
}

void ThreadPool::run(int count, const std::function<void(int)>& body) {
  const std::lock_guard<std::mutex> turn(turn_);
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    // A worker that starts late waits for the generation that counts it.
    count_ = std::min(count, grow(count - 1) + 1);
    body_ = &body;
    unfinished_ = count_ - 1;
    ++generation_;
  }
  started_.notify_all();
  body(0);
  std::unique_lock<std::mutex> lock(mutex_);
  finished_.wait(lock, [this] { return unfinished_ == 0; });
  body_ = nullptr;
}

}  // namespace fuser_direct::cpu
