// Worker threads of our own, for processes without an OpenMP runtime and for forked children.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace fuser_direct::cpu {

// Threads start with the first run that needs them and sleep between runs.
class ThreadPool {
 public:
  ThreadPool() = default;
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  // Calls body(i) once for each 0 <= i < count, on the caller's thread (i = 0) and count - 1
  // workers, and returns when all are done. Where the system refuses a thread, body runs for fewer
  // i. Runs of several threads take turns. body must not throw.
  void run(int count, const std::function<void(int)>& body);

 private:
  void work(int number);
  int grow(int workers);  // gives the number of workers that there are then

  std::mutex turn_;   // held by the run in progress
  std::mutex mutex_;  // guards what follows
  std::condition_variable started_;
  std::condition_variable finished_;
  std::vector<std::thread> workers_;
  const std::function<void(int)>* body_ = nullptr;
  int count_ = 0;       // of the run in progress
  int unfinished_ = 0;  // workers still at it
  int64_t generation_ = 0;
  bool is_stopping_ = false;
};

}  // namespace fuser_direct::cpu
