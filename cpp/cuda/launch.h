// Kernels made from a binary image, and their launch on the caller's stream.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <string>

#include "cuda/device.h"

namespace fuser_direct::cuda {

struct Dim3 {
  unsigned x = 1;
  unsigned y = 1;
  unsigned z = 1;
};

// What the driver says of a kernel on one device.
struct KernelAttributes {
  int registers = 0;            // a thread
  int local_bytes = 0;          // a thread; above 0 there are spills or arrays in local memory
  int static_shared_bytes = 0;  // a block
  int max_threads_per_block = 0;
};

// One function of a cubin or PTX image. Making one touches no driver; it is loaded on a device at
// its first launch there, for the rest of the process. Thread-safe.
class Kernel {
 public:
  // image: bytes of a cubin, or PTX text; name: the function's name in it.
  Kernel(std::string image, std::string name);
  ~Kernel();
  Kernel(const Kernel&) = delete;
  Kernel& operator=(const Kernel&) = delete;

  const std::string& name() const noexcept;
  const std::string& image() const noexcept;

  // Loads the image on `device` unless it is there already; fine while a stream is being captured.
  // Throws CudaUnavailableError or CudaError.
  void load(int device) const;

  // Whether it is loaded on some device of this process.
  bool is_loaded() const noexcept;

  // Loads first where needed.
  KernelAttributes attributes(int device) const;

  // Blocks of `threads` threads and `shared_bytes` of dynamic shared memory that are resident on
  // one SM of `device` at a time.
  int blocks_per_sm(int device, int threads, std::size_t shared_bytes) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
  friend class Launch;
};

// A launch that is repeated with other arguments: the kernel is loaded, the limits of device and
// kernel are checked and the driver's form of it is made the first time alone. Thread-safe.
class Launch {
 public:
  // kernel: must outlive this. cluster: blocks along x that form one thread block cluster; 1 for
  // none. is_early: it may begin while the kernel before it on the stream still runs, since it
  // waits for that one itself before it touches memory; without effect where the device or driver
  // can't.
  Launch(const Kernel& kernel, int device, const Dim3& grid, const Dim3& block,
         unsigned shared_bytes, unsigned cluster = 1, bool is_early = false);
  ~Launch();
  Launch(const Launch&) = delete;
  Launch& operator=(const Launch&) = delete;

  // Whether the grid has no block.
  bool is_empty() const noexcept { return grid_.x == 0 || grid_.y == 0 || grid_.z == 0; }

  // Whether the driver is told that it may begin early. Throws CudaUnavailableError.
  bool begins_early() const;

  // Queues it on `stream` (a CUstream; null is the default stream) of the device, which need not be
  // current: it is made current for the launch, and the caller's restored after it.
  // params: one pointer to each argument's value, read before the call returns.
  // Never waits for the device. Throws LaunchError naming the limit of the device or kernel that is
  // exceeded, CudaError when the driver refuses.
  void queue(void** params, void* stream) const;

 private:
  struct Ready;
  const Ready& ready() const;

  const Kernel& kernel_;
  int device_;
  Dim3 grid_;
  Dim3 block_;
  unsigned shared_bytes_;
  unsigned cluster_;
  bool is_early_;
  mutable std::atomic<const Ready*> ready_{nullptr};  // owned
};

}  // namespace fuser_direct::cuda
