// What the executor needs of the tensor library that a call's tensors belong to, and of the
// interpreter around it. Implemented in cpp/binding; Python objects pass as void*.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/tensor.h"

namespace fuser_direct {

// An output or an intermediate of a program. Strides are in elements, none negative.
struct BufferSpec {
  dl::DataType dtype{dl::TypeCode::kFloat, 32, 1};
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;
  int64_t numel = 0;
  int64_t span_elems = 0;     // elements from the first to the last one, both included
  bool is_row_major = false;  // as a freshly allocated tensor of these sizes

  size_t span_bytes() const { return static_cast<size_t>(span_elems * dtype.itemsize()); }
};

BufferSpec make_buffer_spec(dl::DataType dtype, std::vector<int64_t> sizes,
                            std::vector<int64_t> strides);

// An output that shares memory with buffer `base`; offset from that buffer's first element.
struct ViewSpec {
  int64_t base = 0;
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;
  int64_t offset_elems = 0;
};

// Memory of one buffer during a run.
struct Slot {
  char* data = nullptr;
  void* handle = nullptr;  // a framework's allocation that no Python object owns yet
  void* object = nullptr;  // an owned reference to a Python tensor
};

// A tensor library. All functions need the GIL, except `release` of a handle.
class Framework {
 public:
  virtual ~Framework() = default;

  virtual bool supports(dl::DeviceType type) const = 0;

  // Fills slot.data and slot.handle (or slot.object) with uninitialised memory for `spec`.
  virtual void allocate(const BufferSpec& spec, dl::Device device, Slot& slot) const = 0;

  // A new reference to the tensor in `slot`; the slot keeps none.
  virtual void* wrap(const BufferSpec& spec, Slot& slot) const = 0;

  // Whether callers get something else than what `wrap` and steps of Python code make: `adopt`.
  virtual bool adopts() const { return false; }

  // A new reference to what a caller gets for `object`.
  virtual void* adopt(void* object) const { return object; }

  // A new reference to a tensor that shares the memory of `base` (read as `tensor`) and keeps it
  // alive.
  virtual void* view(void* base, const TensorArg& tensor, const ViewSpec& spec) const = 0;

  // The stream that the library queues work on; null on a CPU.
  virtual void* current_stream(dl::Device device) const = 0;

  // Makes that stream wait for what fills `object`, which a step that ran Python code has made.
  virtual void wait_for(void* object, dl::Device device) const {
    (void)object;
    (void)device;
  }

  // Frees what an unwrapped slot holds.
  virtual void release(Slot& slot) const noexcept = 0;
};

// A step that runs Python code.
class PythonFunction {
 public:
  virtual ~PythonFunction() = default;

  // Calls function(*inputs) with the GIL held and fills each output slot's object and data;
  // throws UsageError when an output is not as `specs` says.
  virtual void call(const std::vector<void*>& inputs, const std::vector<const BufferSpec*>& specs,
                    dl::Device device, Slot* outputs) const = 0;
};

// The interpreter that the call came from.
class Interpreter {
 public:
  virtual ~Interpreter() = default;

  // Let other Python threads run between the two.
  virtual void* release_lock() const noexcept = 0;
  virtual void acquire_lock(void* state) const noexcept = 0;

  virtual void add_reference(void* object) const noexcept = 0;
  virtual void drop_reference(void* object) const noexcept = 0;
};

}  // namespace fuser_direct
