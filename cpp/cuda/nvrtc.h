// NVRTC, NVIDIA's run-time compiler: CUDA C++ text in, cubin or PTX out. Needs no GPU and no
// driver. The library is found by fuser_direct/cuda.py; here it is opened by its full path.
#pragma once

#include <memory>
#include <string>
#include <vector>

namespace fuser_direct::cuda {

// What NVRTC made of one text.
struct Compiled {
  std::string image;  // cubin for a target sm_XX, PTX text for compute_XX
  std::string log;    // warnings; empty as a rule
};

// One opened NVRTC library. Thread-safe: compiles may run side by side.
class Nvrtc {
 public:
  // The library at `path`, opened once and never closed (other threads may be compiling at exit).
  // Its builtins are loaded from the same folder first, so that no other version of them on
  // LD_LIBRARY_PATH can be taken. Throws UnsupportedError when it can't be opened.
  static const Nvrtc& open(const std::string& path);

  ~Nvrtc();

  int major() const noexcept { return major_; }
  int minor() const noexcept { return minor_; }
  const std::string& path() const noexcept { return path_; }

  // Numbers of the targets it can build for, such as 90 of sm_90a, ascending.
  const std::vector<int>& targets() const noexcept { return targets_; }

  // Builds `source`; `name` stands in messages, `options` are NVRTC's own and hold the target as
  // --gpu-architecture=sm_XX (a cubin) or compute_XX (PTX).
  // Throws UnsupportedError when this version doesn't know the target, CompileError with the log
  // and the numbered source when the build fails.
  Compiled compile(const std::string& source, const std::string& name,
                   const std::vector<std::string>& options) const;

 private:
  struct Api;
  Nvrtc(const std::string& path, void* library);
  void check_target(const std::string& target, const std::string& name) const;
  [[noreturn]] void refuse(int result, const std::string& source, const std::string& name,
                           const std::string& target, const std::string& log) const;

  std::string path_;
  std::unique_ptr<const Api> api_;
  int major_ = 0;
  int minor_ = 0;
  std::vector<int> targets_;
};

}  // namespace fuser_direct::cuda
