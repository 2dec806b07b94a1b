// Python arguments of a call -> the core's Arguments.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "executor/argument.h"
#include "executor/framework.h"

namespace fuser_direct {

// The value of a Python bool, int, float or complex; nothing for other objects.
// Throws InputError, opening with `who`, for an int beyond 64 bits.
std::optional<Scalar> read_scalar(PyObject* object, const char* who);

// One call's arguments and all that they borrow. Reused from call to call, so that a call allocates
// nothing once its vectors have grown.
class ArgumentList {
 public:
  ArgumentList() = default;
  ~ArgumentList() { clear(); }
  ArgumentList(const ArgumentList&) = delete;
  ArgumentList& operator=(const ArgumentList&) = delete;

  // Reads `inputs`, an iterable whose list and tuple elements are flattened one level, and holds a
  // reference to each element. Throws InputError naming the position of what can't be read.
  void read(PyObject* inputs);
  void clear() noexcept;

  const std::vector<Argument>& arguments() const { return arguments_; }

  // Room for `count` numbers that stays in place until clear().
  int64_t* dims(size_t count);

  // Holds `object` until clear().
  void keep(nanobind::object object) { kept_.push_back(object.release().ptr()); }

  // Holds `object` until `stream` is done with what it has been given by the time of clear().
  void keep_for_stream(nanobind::object object, dl::Device device, void* stream);

  // The library of the first argument on a GPU that makes outputs there, or null.
  const Framework* first_on_cuda() const { return first_on(dl::DeviceType::kCuda); }

  // The library that makes outputs on `type`: that of the first tensor argument there that can,
  // else of the first elsewhere that can; without one PyTorch if the process has imported it, else
  // NumPy. Throws InputError where none can.
  const Framework& output_framework(dl::DeviceType type) const;

 private:
  // What a stream reads.
  struct OnStream {
    std::vector<PyObject*> objects;
    dl::Device device{dl::DeviceType::kCpu, 0};
    void* stream = nullptr;
  };

  const Framework* first_on(dl::DeviceType type) const;
  void read_sequence(PyObject* sequence, bool is_nested);
  void read_one(PyObject* object);

  std::vector<Argument> arguments_;
  std::vector<PyObject*> kept_;
  std::vector<OnStream> on_streams_;
  std::deque<std::vector<int64_t>> dims_;
  size_t dims_used_ = 0;
};

// The GIL and reference counts.
class PythonInterpreter final : public Interpreter {
 public:
  void* release_lock() const noexcept override { return PyEval_SaveThread(); }
  void acquire_lock(void* state) const noexcept override {
    PyEval_RestoreThread(static_cast<PyThreadState*>(state));
  }
  void add_reference(void* object) const noexcept override {
    Py_INCREF(static_cast<PyObject*>(object));
  }
  void drop_reference(void* object) const noexcept override {
    Py_DECREF(static_cast<PyObject*>(object));
  }
};

}  // namespace fuser_direct
