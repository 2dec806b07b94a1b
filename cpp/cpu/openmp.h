// The OpenMP runtime that is in the process already (PyTorch's, most often), else the system's.
#pragma once

#include <string>

namespace fuser_direct::cpu {

// Entry points of a GNU-compatible OpenMP runtime; all are set.
struct OpenMp {
  void (*parallel)(void (*body)(void*), void* data, unsigned threads, unsigned flags);
  int (*thread_number)();
  int (*max_threads)();
  int (*in_parallel)();
  std::string path;
};

// Finds the runtime: a loaded library whose name holds libgomp, libomp or libiomp, with the one
// that lies beside PyTorch first; else libgomp.so.1. Null when there is none. Looked for at the
// first call, kept for good, and never unloaded. Thread-safe.
const OpenMp* openmp();

}  // namespace fuser_direct::cpu
