#include "executor/program.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "core/error.h"
#include "core/half.h"

namespace fuser_direct {

namespace {

// Whether a fresh tensor of these sizes has these strides; size-1 dims and empty tensors never
// differ.
bool is_row_major(const std::vector<int64_t>& sizes, const std::vector<int64_t>& strides,
                  int64_t numel) {
  if (numel == 0) return true;
  int64_t expected = 1;
  for (size_t d = sizes.size(); d-- > 0;) {
    if (sizes[d] != 1 && strides[d] != expected) return false;
    expected *= sizes[d];
  }
  return true;
}

template <typename T>
int64_t bits_in_slot(T value) {
  static_assert(sizeof(T) <= sizeof(int64_t));
  int64_t slot = 0;
  std::memcpy(&slot, &value, sizeof(value));
  return slot;
}

}  // namespace

BufferSpec make_buffer_spec(dl::DataType dtype, std::vector<int64_t> sizes,
                            std::vector<int64_t> strides) {
  if (sizes.size() != strides.size()) {
    throw UsageError("Program.add_buffer: got " + std::to_string(sizes.size()) + " sizes and " +
                     std::to_string(strides.size()) + " strides; give one stride a size");
  }
  BufferSpec spec;
  spec.dtype = dtype;
  spec.numel = 1;
  spec.span_elems = 1;
  bool is_too_large = false;
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] < 0 || strides[d] < 0) {
      throw UsageError("Program.add_buffer: sizes and strides must not be negative, got " +
                       std::to_string(sizes[d]) + " and " + std::to_string(strides[d]) +
                       " in dim " + std::to_string(d));
    }
    int64_t reach = 0;
    is_too_large |= __builtin_mul_overflow(spec.numel, sizes[d], &spec.numel) ||
                    __builtin_mul_overflow(sizes[d] - 1, strides[d], &reach) ||
                    __builtin_add_overflow(spec.span_elems, reach, &spec.span_elems);
  }
  const bool is_empty = std::count(sizes.begin(), sizes.end(), 0) > 0;
  if (is_empty) spec.numel = spec.span_elems = 0;
  int64_t bytes = 0;
  is_too_large |= __builtin_mul_overflow(spec.span_elems, dtype.itemsize(), &bytes);
  if (is_too_large && !is_empty) {
    throw InputError("a tensor of sizes " +
                     dims_text(sizes.data(), static_cast<int32_t>(sizes.size())) +
                     " has more bytes than a 64-bit address can count");
  }
  spec.is_row_major = is_row_major(sizes, strides, spec.numel);
  spec.sizes = std::move(sizes);
  spec.strides = std::move(strides);
  return spec;
}

ScalarType parse_scalar_type(const std::string& name) {
  constexpr std::pair<const char*, ScalarType> kNames[] = {
      {"f32", ScalarType::kF32},   {"f64", ScalarType::kF64}, {"i64", ScalarType::kI64},
      {"i32", ScalarType::kI32},   {"u8", ScalarType::kU8},   {"c64", ScalarType::kC64},
      {"c128", ScalarType::kC128}, {"f16", ScalarType::kF16}, {"bf16", ScalarType::kBf16},
  };
  for (const auto& [text, type] : kNames) {
    if (name == text) return type;
  }
  throw UsageError(
      "a kernel argument's type must be one of f32, f64, i64, i32, u8, c64, c128, f16 "
      "and bf16, got '" +
      name + "'");
}

PackedScalar pack_scalar(const Scalar& value, ScalarType type) {
  switch (type) {
    case ScalarType::kF32:
      return {bits_in_slot(static_cast<float>(value.as_double())), 0};
    case ScalarType::kF16: {
      const auto single = static_cast<float>(value.as_double());
      return {bits_in_slot(half_to_float(float_to_half(single))), 0};
    }
    case ScalarType::kBf16: {
      const auto single = static_cast<float>(value.as_double());
      return {bits_in_slot(bfloat16_to_float(float_to_bfloat16(single))), 0};
    }
    case ScalarType::kF64:
      return {bits_in_slot(value.as_double()), 0};
    case ScalarType::kI64:
      return {value.as_int(), 0};
    case ScalarType::kI32:
      return {static_cast<int32_t>(value.as_int()), 0};
    case ScalarType::kU8:
      return {value.as_bool() ? 1 : 0, 0};
    case ScalarType::kC64:
      return {bits_in_slot(std::complex<float>(value.as_complex())), 0};
    case ScalarType::kC128:
      break;
  }
  const std::complex<double> number = value.as_complex();
  return {bits_in_slot(number.real()), bits_in_slot(number.imag())};
}

KernelArgs::KernelArgs(const std::vector<KernelArg>& args) {
  for (KernelArg arg : args) {
    arg.slot = static_cast<int64_t>(packed.size());
    slots.push_back(arg.slot);
    packed.push_back(arg.constant[0]);
    const bool is_pointer = arg.source == KernelArg::Source::kPointer;
    if (!is_pointer && slots_of(arg.type) == 2) packed.push_back(arg.constant[1]);
    if (arg.source != KernelArg::Source::kConstant) dynamic.push_back(arg);
  }
}

Program::Program(dl::Device device, int64_t num_inputs) : device_(device), num_inputs_(num_inputs) {
  if (num_inputs < 0) throw UsageError("Program: num_inputs must not be negative");
}

void Program::require_open() const {
  if (is_finished_) {
    throw UsageError("Program: it has been handed to an executor and can't be changed any more");
  }
}

void Program::require_buffer(int64_t number, const char* where) const {
  const int64_t count = num_inputs_ + static_cast<int64_t>(buffers_.size());
  if (number < 0 || number >= count) {
    throw UsageError(std::string("Program.") + where + ": buffer " + std::to_string(number) +
                     " does not exist; there are " + std::to_string(count));
  }
}

void Program::require_input(int64_t number, const char* where) const {
  if (number < 0 || number >= num_inputs_) {
    throw UsageError(std::string("Program.") + where + ": input " + std::to_string(number) +
                     " does not exist; there are " + std::to_string(num_inputs_));
  }
}

void Program::require_args(const KernelArgs& args, const char* where) const {
  for (const KernelArg& arg : args.dynamic) {
    if (arg.source == KernelArg::Source::kPointer) {
      require_buffer(arg.index, where);
    } else {
      require_input(arg.index, where);
    }
  }
}

int64_t Program::add_buffer(dl::DataType dtype, std::vector<int64_t> sizes,
                            std::vector<int64_t> strides) {
  require_open();
  buffers_.push_back(make_buffer_spec(dtype, std::move(sizes), std::move(strides)));
  return num_inputs_ + static_cast<int64_t>(buffers_.size()) - 1;
}

void Program::add_step(CudaStep step) {
  require_open();
  require_args(step.args, "launch_cuda");
  if (device_.type != dl::DeviceType::kCuda) {
    throw UsageError(
        "Program.launch_cuda: this program runs on the CPU; make it for a CUDA device");
  }
  steps_.push_back(Step{std::move(step), {}, {}});
}

void Program::add_step(CpuStep step) {
  require_open();
  require_args(step.args, "launch_cpu");
  if (device_.type != dl::DeviceType::kCpu) {
    throw UsageError("Program.launch_cpu: this program runs on a CUDA device; make it for the CPU");
  }
  steps_.push_back(Step{std::move(step), {}, {}});
}

void Program::add_step(CopyStep step) {
  require_open();
  require_buffer(step.dst, "copy");
  require_buffer(step.src, "copy");
  if (device_.type != dl::DeviceType::kCpu) {
    throw UnsupportedError(
        "Program.copy: only CPU memory is copied here; on a CUDA device launch a "
        "kernel that copies");
  }
  steps_.push_back(Step{std::move(step), {}, {}});
}

void Program::add_step(PythonStep step) {
  require_open();
  for (int64_t number : step.ins) require_buffer(number, "call");
  for (int64_t number : step.outs) {
    require_buffer(number, "call");
    if (is_input(number)) throw UsageError("Program.call: an output must not be an input's buffer");
  }
  steps_.push_back(Step{std::move(step), {}, {}});
}

void Program::add_output(int64_t buffer) {
  require_open();
  require_buffer(buffer, "add_output");
  outputs_.push_back({is_input(buffer) ? Output::Kind::kInput : Output::Kind::kBuffer, buffer});
}

void Program::add_view(ViewSpec view) {
  require_open();
  require_buffer(view.base, "add_view");
  if (view.sizes.size() != view.strides.size()) {
    throw UsageError("Program.add_view: give one stride a size");
  }
  outputs_.push_back({Output::Kind::kView, static_cast<int64_t>(views_.size())});
  views_.push_back(std::move(view));
}

void Program::add_written_input(int64_t input) {
  require_open();
  require_input(input, "writes_input");
  written_inputs_.push_back(input);
}

std::vector<int64_t> Program::buffers_of(const Step& step) const {
  std::vector<int64_t> numbers;
  const auto add_pointers = [&numbers](const KernelArgs& args) {
    for (const KernelArg& arg : args.dynamic) {
      if (arg.source == KernelArg::Source::kPointer) numbers.push_back(arg.index);
    }
  };
  if (const auto* cuda_step = std::get_if<CudaStep>(&step.action)) {
    add_pointers(cuda_step->args);
  } else if (const auto* cpu_step = std::get_if<CpuStep>(&step.action)) {
    add_pointers(cpu_step->args);
  } else if (const auto* copy = std::get_if<CopyStep>(&step.action)) {
    numbers = {copy->dst, copy->src};
  } else if (const auto* call = std::get_if<PythonStep>(&step.action)) {
    numbers = call->ins;
    numbers.insert(numbers.end(), call->outs.begin(), call->outs.end());
  }
  return numbers;
}

bool Program::has_early_launches() const {
  return std::any_of(steps_.begin(), steps_.end(), [](const Step& step) {
    const auto* cuda = std::get_if<CudaStep>(&step.action);
    return cuda != nullptr && cuda->launch->begins_early();
  });
}

void Program::finish() {
  if (is_finished_) return;
  constexpr size_t kNever = std::numeric_limits<size_t>::max();
  std::vector<size_t> first(buffers_.size(), kNever);
  std::vector<size_t> last(buffers_.size(), kNever);
  for (size_t s = 0; s < steps_.size(); ++s) {
    for (int64_t number : buffers_of(steps_[s])) {
      if (is_input(number)) continue;
      const auto b = static_cast<size_t>(number - num_inputs_);
      if (first[b] == kNever) first[b] = s;
      last[b] = s;
    }
  }
  std::vector<bool> is_output(buffers_.size(), false);
  for (const Output& output : outputs_) {
    // A view keeps the buffer it looks at.
    const bool is_view = output.kind == Output::Kind::kView;
    const int64_t number = is_view ? views_[static_cast<size_t>(output.index)].base : output.index;
    if (!is_input(number)) is_output[static_cast<size_t>(number - num_inputs_)] = true;
  }
  for (size_t b = 0; b < buffers_.size(); ++b) {
    const int64_t number = num_inputs_ + static_cast<int64_t>(b);
    if (first[b] == kNever) {
      if (is_output[b]) outputs_without_step_.push_back(number);
      continue;
    }
    const auto* call = std::get_if<PythonStep>(&steps_[first[b]].action);
    const bool is_made_by_call =
        call != nullptr && std::count(call->outs.begin(), call->outs.end(), number) > 0;
    if (!is_made_by_call) steps_[first[b]].allocate.push_back(number);
    if (!is_output[b]) steps_[last[b]].release.push_back(number);
  }
  is_finished_ = true;
}

}  // namespace fuser_direct
