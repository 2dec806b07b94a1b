// What the compiler hands over for one kind of call: buffers, steps in order, outputs.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "core/dlpack.h"
#include "core/tensor.h"
#include "cpu/parallel.h"
#include "cuda/launch.h"
#include "executor/framework.h"

namespace fuser_direct {

// Type of a kernel's parameter. Half types travel as float that holds a value of the half type.
enum class ScalarType : uint8_t { kF32, kF64, kI64, kI32, kU8, kC64, kC128, kF16, kBf16 };

ScalarType parse_scalar_type(const std::string& name);

// Widest parameter: two 8-byte slots.
using PackedScalar = std::array<int64_t, 2>;

// The bits of `value` as a parameter of `type`: small types in the low bytes, integers and bool
// extended to a whole slot, complex float as two floats, complex double in both slots.
PackedScalar pack_scalar(const Scalar& value, ScalarType type);

inline int slots_of(ScalarType type) { return type == ScalarType::kC128 ? 2 : 1; }

// One argument of a kernel and where it lies in the packed block.
struct KernelArg {
  enum class Source : uint8_t { kConstant, kPointer, kScalar, kItem };

  Source source = Source::kConstant;
  ScalarType type = ScalarType::kI64;
  int64_t index = 0;         // buffer of a pointer or item, input of a scalar
  int64_t offset_elems = 0;  // of a pointer
  PackedScalar constant{};
  int64_t slot = 0;
};

// The arguments of a launch: a block of 8-byte slots with the constants in place, the arguments
// that each call fills in, and the slot where each argument begins.
class KernelArgs {
 public:
  KernelArgs() = default;
  explicit KernelArgs(const std::vector<KernelArg>& args);

  std::vector<int64_t> packed;
  std::vector<KernelArg> dynamic;
  std::vector<int64_t> slots;
};

struct CudaStep {
  std::shared_ptr<cuda::Kernel> kernel;
  std::unique_ptr<cuda::Launch> launch;  // of `kernel`
  KernelArgs args;
};

// owner keeps the code alive.
struct CpuKernel {
  cpu::KernelFunction function = nullptr;
  std::shared_ptr<void> owner;
};

struct CpuStep {
  std::shared_ptr<CpuKernel> kernel;
  cpu::Work work;
  KernelArgs args;
};

struct CopyStep {
  int64_t dst = 0;
  int64_t src = 0;
};

struct PythonStep {
  std::shared_ptr<PythonFunction> function;
  std::vector<int64_t> ins;
  std::vector<int64_t> outs;
};

// A step with the buffers to allocate before it and to free after it.
struct Step {
  std::variant<CudaStep, CpuStep, CopyStep, PythonStep> action;
  std::vector<int64_t> allocate;
  std::vector<int64_t> release;
};

struct Output {
  enum class Kind : uint8_t { kInput, kBuffer, kView };
  Kind kind = Kind::kBuffer;
  int64_t index = 0;  // input, buffer, or entry of views()
};

// Built once by the compiler's thread, then finished and shared unchanged between threads.
// Buffers 0..num_inputs-1 are the inputs. Every adding function throws UsageError for a number that
// is out of range, or once the program is finished.
class Program {
 public:
  Program(dl::Device device, int64_t num_inputs);
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  int64_t add_buffer(dl::DataType dtype, std::vector<int64_t> sizes, std::vector<int64_t> strides);
  void add_step(CudaStep step);
  void add_step(CpuStep step);
  void add_step(CopyStep step);
  void add_step(PythonStep step);
  void add_output(int64_t buffer);
  void add_view(ViewSpec view);
  void add_written_input(int64_t input);

  // Fixes the lifetimes of buffers; called when the program is handed over, more calls do nothing.
  void finish();

  dl::Device device() const { return device_; }
  int64_t num_inputs() const { return num_inputs_; }
  const std::vector<BufferSpec>& buffers() const { return buffers_; }
  const BufferSpec& buffer(int64_t number) const {
    return buffers_[static_cast<size_t>(number - num_inputs_)];
  }
  const std::vector<Step>& steps() const { return steps_; }
  const std::vector<Output>& outputs() const { return outputs_; }
  const std::vector<int64_t>& outputs_without_step() const { return outputs_without_step_; }
  const std::vector<ViewSpec>& views() const { return views_; }
  const std::vector<int64_t>& written_inputs() const { return written_inputs_; }
  // Whether some kernel may begin while the one before it still runs.
  bool has_early_launches() const;

  bool is_finished() const { return is_finished_; }

  // Whatever the compiler wants to find again with the program; the executor doesn't look at it.
  void set_info(std::shared_ptr<void> info) { info_ = std::move(info); }
  const std::shared_ptr<void>& info() const { return info_; }

 private:
  bool is_input(int64_t number) const { return number < num_inputs_; }
  void require_open() const;
  void require_buffer(int64_t number, const char* where) const;
  void require_input(int64_t number, const char* where) const;
  void require_args(const KernelArgs& args, const char* where) const;
  std::vector<int64_t> buffers_of(const Step& step) const;

  dl::Device device_;
  int64_t num_inputs_;
  std::vector<BufferSpec> buffers_;
  std::vector<Step> steps_;
  std::vector<Output> outputs_;
  std::vector<int64_t> outputs_without_step_;
  std::vector<ViewSpec> views_;
  std::vector<int64_t> written_inputs_;
  bool is_finished_ = false;
  std::shared_ptr<void> info_;
};

}  // namespace fuser_direct
