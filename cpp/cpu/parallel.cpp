#include "cpu/parallel.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <new>
#include <thread>

#include "cpu/openmp.h"
#include "cpu/thread_pool.h"

namespace fuser_direct::cpu {

namespace {

constexpr size_t kScratchAlignment = 64;
// Chunks for each thread, so that a thread that is held up leaves its rest to the others.
constexpr int64_t kChunksPerThread = 4;

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};

struct AlignedBlock {
  std::unique_ptr<void, Free> memory;
  size_t size = 0;
};

// The process's threads. There is one, since OpenMP settings and forks are the process's too.
struct Runtime {
  std::atomic<int> set_threads{0};
  std::atomic<bool> is_forked{false};
  std::mutex mutex;  // guards what follows
  std::unique_ptr<ThreadPool> pool;
  AlignedBlock spare_block;
};

Runtime& runtime() {
  // Never destroyed: daemon threads may still run kernels while the process exits.
  static Runtime* const instance = new Runtime;
  return *instance;
}

// In a forked child neither the OpenMP workers nor ours exist, though both believe they do.
void after_fork_in_child() {
  Runtime& state = runtime();
  state.is_forked = true;
  static_cast<void>(state.pool.release());  // its threads are gone; joining them would hang
  new (&state.mutex) std::mutex;            // may have been held by a thread that is gone
}

// Runs when the library is loaded, since the fork may come before the first kernel.
const int kForkHandler = pthread_atfork(nullptr, nullptr, after_fork_in_child);

const OpenMp* usable_openmp() { return runtime().is_forked ? nullptr : openmp(); }

ThreadPool& pool() {
  Runtime& state = runtime();
  const std::lock_guard<std::mutex> lock(state.mutex);
  if (state.pool == nullptr) state.pool = std::make_unique<ThreadPool>();
  return *state.pool;
}

int threads_from_environment() {
  const char* text = std::getenv("FUSER_DIRECT_NUM_THREADS");
  if (text == nullptr) return 0;
  return static_cast<int>(std::clamp(std::strtol(text, nullptr, 10), 0L, 4096L));
}

int affinity_threads() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

// Scratch memory of a run, `bytes` for each of its threads. The block goes back to be used again.
class Scratch {
 public:
  Scratch(size_t bytes, int threads)
      : stride_((bytes + kScratchAlignment - 1) / kScratchAlignment * kScratchAlignment) {
    const size_t size = stride_ * static_cast<size_t>(threads);
    if (size == 0) return;
    {
      const std::lock_guard<std::mutex> lock(runtime().mutex);
      std::swap(block_, runtime().spare_block);
    }
    if (block_.size >= size) return;
    block_ = AlignedBlock();
    block_.memory.reset(std::aligned_alloc(kScratchAlignment, size));
    if (block_.memory == nullptr) throw std::bad_alloc();
    block_.size = size;
  }
  ~Scratch() {
    if (block_.size == 0) return;
    const std::lock_guard<std::mutex> lock(runtime().mutex);
    if (block_.size > runtime().spare_block.size) std::swap(block_, runtime().spare_block);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  void* of_thread(int number) const {
    if (stride_ == 0) return nullptr;
    return static_cast<char*>(block_.memory.get()) + stride_ * static_cast<size_t>(number);
  }

 private:
  size_t stride_;
  AlignedBlock block_;
};

// One parallel run, shared by its threads.
struct Job {
  KernelFunction function;
  const int64_t* args;
  int64_t items;
  int64_t chunk;
  int threads;  // those of a higher number have nothing to do
  const Scratch& scratch;
  const OpenMp* omp;
  std::atomic<int64_t> next{0};

  void work(int thread) noexcept {
    if (thread >= threads) return;
    void* memory = scratch.of_thread(thread);
    for (;;) {
      const int64_t begin = next.fetch_add(chunk, std::memory_order_relaxed);
      if (begin >= items) return;
      function(args, begin, std::min(items, begin + chunk), memory);
    }
  }

  static void run_member(void* data) {
    auto* job = static_cast<Job*>(data);
    job->work(job->omp->thread_number());
  }
};

void run_serial(KernelFunction function, const int64_t* args, const Work& work) {
  const Scratch scratch(work.scratch_bytes, 1);
  function(args, 0, work.items, scratch.of_thread(0));
}

}  // namespace

bool is_long(const Work& work) { return work.items > work.grain / 4; }

void run(KernelFunction function, const int64_t* args, const Work& work) {
  if (work.items <= 0) return;
  const int64_t grain = std::max<int64_t>(1, work.grain);
  if (work.items <= grain) return run_serial(function, args, work);
  const int64_t useful = (work.items + grain - 1) / grain;
  const int threads = static_cast<int>(std::min<int64_t>(useful, num_threads()));
  const OpenMp* omp = usable_openmp();
  if (threads <= 1 || (omp != nullptr && omp->in_parallel() != 0)) {
    return run_serial(function, args, work);
  }
  const int64_t chunks = std::min(work.items, threads * kChunksPerThread);
  const int64_t chunk = (work.items + chunks - 1) / chunks;
  const Scratch scratch(work.scratch_bytes, threads);
  Job job{function, args, work.items, chunk, threads, scratch, omp};
  if (omp != nullptr) {
    // Always a team of one size: a runtime ends and starts threads when the size changes.
    omp->parallel(Job::run_member, &job, static_cast<unsigned>(num_threads()), 0);
  } else {
    pool().run(threads, [&job](int thread) { job.work(thread); });
  }
}

int num_threads() {
  const int fixed = runtime().set_threads;
  if (fixed > 0) return fixed;
  static const int from_environment = threads_from_environment();
  if (from_environment > 0) return from_environment;
  // Only settings are read here, which is safe in a forked child too.
  const OpenMp* omp = openmp();
  return omp != nullptr ? std::max(1, omp->max_threads()) : affinity_threads();
}

void set_num_threads(int count) { runtime().set_threads = std::max(0, count); }

std::string backend_name() {
  const OpenMp* omp = usable_openmp();
  return omp != nullptr ? omp->path : "own pool";
}

}  // namespace fuser_direct::cpu
