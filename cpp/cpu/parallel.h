// Runs CPU kernels over their work items on the process's threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace fuser_direct::cpu {

// Runs work items begin <= w < end. args: one 8-byte slot an argument; scratch: 64-byte aligned.
using KernelFunction = void (*)(const int64_t* args, int64_t begin, int64_t end, void* scratch);

struct Work {
  int64_t items = 0;
  int64_t grain = 1;         // least items that are worth a thread of their own
  size_t scratch_bytes = 0;  // for each thread
};

// Whether a run takes long enough that other Python threads should get their turn.
bool is_long(const Work& work);

// Runs all items and returns when they are done. Serial when there are no more than `grain` items,
// when one thread is set, or when called inside a parallel region. Thread-safe.
void run(KernelFunction function, const int64_t* args, const Work& work);

// Threads that a run may use: the number set, else FUSER_DIRECT_NUM_THREADS, else the OpenMP
// runtime's setting (which is PyTorch's), else the processors this process may run on.
int num_threads();

// Fixes the number of threads for the process; 0 goes back to the default.
void set_num_threads(int count);

// Which threads run kernels: the path of the OpenMP runtime in use, or "own pool".
std::string backend_name();

}  // namespace fuser_direct::cpu
