#include "binding/exchange.h"

#include <algorithm>
#include <memory>
#include <string>

#include "binding/framework.h"
#include "binding/python_owner.h"
#include "core/error.h"

namespace nb = nanobind;

namespace fuser_direct {

namespace {

Scalar integer(ScalarKind kind, int64_t value) {
  Scalar scalar;
  scalar.kind = kind;
  scalar.integer = value;
  return scalar;
}

Scalar floating(ScalarKind kind, double real, double imaginary) {
  Scalar scalar;
  scalar.kind = kind;
  scalar.real_or_complex = {real, imaginary};
  return scalar;
}

// Memory that a kernel can use: present, and aligned for its elements.
void check_memory(const TensorArg& tensor, const std::string& who) {
  if (tensor.numel() == 0) return;
  if (tensor.data == nullptr) {
    throw InputError(who + " has no memory behind it (a fake or meta tensor); pass a real tensor");
  }
  if (!tensor.is_aligned()) {
    throw InputError(who + " is not aligned for its elements of " +
                     std::to_string(tensor.dtype.itemsize()) + " bytes; pass a copy");
  }
}

std::string first_line(const char* text) {
  const std::string all = text;
  return all.substr(0, all.find('\n'));
}

}  // namespace

std::optional<Scalar> read_scalar(PyObject* object, const char* who) {
  if (PyBool_Check(object)) return integer(ScalarKind::kBool, object == Py_True ? 1 : 0);
  if (PyFloat_Check(object)) return floating(ScalarKind::kFloat, PyFloat_AsDouble(object), 0.0);
  if (PyLong_Check(object)) {
    int overflow = 0;
    const long long value = PyLong_AsLongLongAndOverflow(object, &overflow);
    if (overflow != 0) throw InputError(std::string(who) + ": an int beyond 64 bits can't be used");
    return integer(ScalarKind::kInt, value);
  }
  if (PyComplex_Check(object)) {
    return floating(ScalarKind::kComplex, PyComplex_RealAsDouble(object),
                    PyComplex_ImagAsDouble(object));
  }
  return std::nullopt;
}

void ArgumentList::clear() noexcept {
  arguments_.clear();
  for (PyObject* object : kept_) Py_DECREF(object);
  kept_.clear();
  for (OnStream& group : on_streams_) {
    release_after(std::move(group.objects), group.device, group.stream);
  }
  on_streams_.clear();
  dims_used_ = 0;
}

void ArgumentList::keep_for_stream(nb::object object, dl::Device device, void* stream) {
  for (OnStream& group : on_streams_) {
    if (group.device != device || group.stream != stream) continue;
    group.objects.push_back(object.release().ptr());
    return;
  }
  on_streams_.push_back({{}, device, stream});
  on_streams_.back().objects.push_back(object.release().ptr());
}

int64_t* ArgumentList::dims(size_t count) {
  if (dims_used_ == dims_.size()) dims_.emplace_back();
  std::vector<int64_t>& room = dims_[dims_used_++];
  room.resize(count);
  return room.data();
}

void ArgumentList::read(PyObject* inputs) {
  clear();
  if (PyList_Check(inputs) || PyTuple_Check(inputs)) {
    read_sequence(inputs, false);
    return;
  }
  nb::object list = nb::steal(PySequence_List(inputs));
  if (!list.is_valid()) nb::raise_python_error();
  read_sequence(list.ptr(), false);
}

void ArgumentList::read_sequence(PyObject* sequence, bool is_nested) {
  const bool is_list = PyList_Check(sequence);
  // The size is asked for each time: reading an element may run code that shortens the list.
  for (Py_ssize_t i = 0; i < (is_list ? PyList_Size(sequence) : PyTuple_Size(sequence)); ++i) {
    PyObject* item = is_list ? PyList_GetItem(sequence, i) : PyTuple_GetItem(sequence, i);
    Py_INCREF(item);
    kept_.push_back(item);
    if (!is_nested && (PyList_Check(item) || PyTuple_Check(item))) {
      read_sequence(item, true);
    } else {
      read_one(item);
    }
  }
}

void ArgumentList::read_one(PyObject* object) {
  const auto who = [this] { return "execute: argument " + std::to_string(arguments_.size() - 1); };
  Argument& argument = arguments_.emplace_back();
  argument.object = object;
  if (const TensorLibrary* library = library_of(Py_TYPE(object), object)) {
    argument.kind = Argument::Kind::kTensor;
    argument.framework = library;
    try {
      library->read(object, *this, argument.tensor);
    } catch (const InputError& error) {
      throw InputError(who() + " " + error.what());
    } catch (const nb::python_error& error) {
      if (!error.matches(PyExc_Exception)) throw;
      throw InputError(who() + " can't be read: " + first_line(nb::str(error.value()).c_str()));
    }
    const bool is_usable = argument.tensor.data != nullptr && argument.tensor.is_aligned();
    if (!is_usable) check_memory(argument.tensor, who());
  } else if (const auto scalar = read_scalar(object, "execute")) {
    argument.kind = Argument::Kind::kScalar;
    argument.scalar = *scalar;
  }
}

const Framework* ArgumentList::first_on(dl::DeviceType type) const {
  for (const Argument& argument : arguments_) {
    if (argument.kind != Argument::Kind::kTensor || argument.tensor.device.type != type) continue;
    if (argument.framework->supports(type)) return argument.framework;
  }
  return nullptr;
}

const Framework& ArgumentList::output_framework(dl::DeviceType type) const {
  if (const Framework* there = first_on(type)) return *there;
  bool has_tensor = false;
  for (const Argument& argument : arguments_) {
    if (argument.kind != Argument::Kind::kTensor) continue;
    has_tensor = true;
    if (argument.framework->supports(type)) return *argument.framework;
  }
  const TensorLibrary* torch = imported_torch();
  if (torch != nullptr && !has_tensor) return *torch;
  if (type == dl::DeviceType::kCpu) return numpy_library();
  if (torch != nullptr) return *torch;
  throw InputError(
      "execute: outputs on a CUDA device need PyTorch, which this process hasn't imported");
}

std::shared_ptr<void> own(nb::object object) {
  PyObject* held = object.release().ptr();
  return std::shared_ptr<void>(held, [](void* pointer) {
    with_gil([pointer] { Py_DECREF(static_cast<PyObject*>(pointer)); });
  });
}

}  // namespace fuser_direct
