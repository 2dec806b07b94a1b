// PyTorch tensors without the DLPack C exchange API (before 2.10), through their Python attributes.
#include <nanobind/stl/string.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "binding/exchange.h"
#include "binding/framework.h"
#include "core/error.h"

namespace nb = nanobind;

namespace fuser_direct {

namespace {

nb::object call_method(PyObject* object, const char* method) {
  nb::object result = nb::steal(PyObject_CallMethod(object, method, nullptr));
  if (!result.is_valid()) nb::raise_python_error();
  return result;
}

// A device type that no fusion runs on, standing for all others of PyTorch's.
constexpr auto kOtherDevice = static_cast<dl::DeviceType>(12);

// Copies a tuple of ints.
void read_ints(const nb::object& tuple, int64_t* out, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    PyObject* item = PyTuple_GetItem(tuple.ptr(), static_cast<Py_ssize_t>(i));
    if (item == nullptr) nb::raise_python_error();
    out[i] = PyLong_AsLongLong(item);
  }
  if (PyErr_Occurred() != nullptr) nb::raise_python_error();
}

nb::list int_list(const std::vector<int64_t>& values) {
  nb::list list;
  for (int64_t value : values) list.append(value);
  return list;
}

class TorchLibrary final : public TensorLibrary {
 public:
  TorchLibrary()
      : torch_(nb::module_::import_("torch")), empty_strided_(torch_.attr("empty_strided")) {
    using dl::TypeCode;
    const std::pair<const char*, dl::DataType> kTypes[] = {
        {"float32", {TypeCode::kFloat, 32, 1}},
        {"bfloat16", {TypeCode::kBfloat, 16, 1}},
        {"float16", {TypeCode::kFloat, 16, 1}},
        {"float64", {TypeCode::kFloat, 64, 1}},
        {"int64", {TypeCode::kInt, 64, 1}},
        {"int32", {TypeCode::kInt, 32, 1}},
        {"bool", {TypeCode::kBool, 8, 1}},
        {"complex64", {TypeCode::kComplex, 64, 1}},
        {"complex128", {TypeCode::kComplex, 128, 1}},
        {"int16", {TypeCode::kInt, 16, 1}},
        {"int8", {TypeCode::kInt, 8, 1}},
        {"uint8", {TypeCode::kUInt, 8, 1}},
    };
    for (const auto& [name, type] : kTypes) dtypes_.emplace_back(torch_.attr(name), type);
  }

  bool supports(dl::DeviceType) const override { return true; }

  void read(PyObject* object, ArgumentList& list, TensorArg& out) const override {
    const nb::handle tensor(object);
    if (call_method(object, "is_conj").ptr() == Py_True) {
      throw InputError("is a lazy conjugate; pass tensor.resolve_conj()");
    }
    if (call_method(object, "is_neg").ptr() == Py_True) {
      throw InputError("is a lazy negation; pass tensor.resolve_neg()");
    }
    out.dtype = dtype_of(tensor.attr("dtype"));
    out.device = device_of(tensor);
    const nb::object sizes = tensor.attr("shape");
    const nb::object strides = call_method(object, "stride");
    const auto ndim = static_cast<size_t>(nb::len(sizes));
    int64_t* dims = list.dims(2 * ndim);
    read_ints(sizes, dims, ndim);
    read_ints(strides, dims + ndim, ndim);
    out.ndim = static_cast<int32_t>(ndim);
    out.sizes = dims;
    out.strides = dims + ndim;
    const auto address = nb::cast<uintptr_t>(call_method(object, "data_ptr"));
    out.data = reinterpret_cast<char*>(address);
  }

  // The slot's handle is the finished tensor.
  void allocate(const BufferSpec& spec, dl::Device device, Slot& slot) const override {
    const bool is_cuda = device.type == dl::DeviceType::kCuda;
    const std::string name = is_cuda ? "cuda:" + std::to_string(device.id) : "cpu";
    nb::object tensor =
        empty_strided_(int_list(spec.sizes), int_list(spec.strides),
                       nb::arg("dtype") = dtype(spec.dtype), nb::arg("device") = name);
    slot.data = reinterpret_cast<char*>(nb::cast<uintptr_t>(call_method(tensor.ptr(), "data_ptr")));
    slot.handle = tensor.release().ptr();
  }

  void* wrap(const BufferSpec&, Slot& slot) const override {
    void* tensor = slot.handle;
    slot = Slot{};
    return tensor;
  }

  void* view(void* base, const TensorArg&, const ViewSpec& spec) const override {
    const nb::handle tensor(static_cast<PyObject*>(base));
    const nb::object detached = tensor.attr("detach")();
    const auto offset = nb::cast<int64_t>(call_method(detached.ptr(), "storage_offset"));
    nb::object made = detached.attr("as_strided")(int_list(spec.sizes), int_list(spec.strides),
                                                  offset + spec.offset_elems);
    return made.release().ptr();
  }

  void* current_stream(dl::Device device) const override {
    const nb::object stream = torch_.attr("cuda").attr("current_stream")(device.id);
    return reinterpret_cast<void*>(nb::cast<uintptr_t>(stream.attr("cuda_stream")));
  }

  void release(Slot& slot) const noexcept override {
    Py_XDECREF(static_cast<PyObject*>(slot.handle));
    Py_XDECREF(static_cast<PyObject*>(slot.object));
    slot = Slot{};
  }

 private:
  dl::DataType dtype_of(const nb::object& dtype) const {
    for (const auto& [object, type] : dtypes_) {
      if (object.is(dtype)) return type;
    }
    throw InputError("has dtype " + std::string(nb::str(dtype).c_str()) +
                     ", which no fusion takes; convert it first");
  }

  const nb::object& dtype(dl::DataType type) const {
    for (const auto& [object, known] : dtypes_) {
      if (known == type) return object;
    }
    throw UnsupportedError("PyTorch has no dtype for DLPack type code " +
                           std::to_string(static_cast<int>(type.code)));
  }

  static dl::Device device_of(nb::handle tensor) {
    const nb::object device = tensor.attr("device");
    const std::string type = nb::str(nb::object(device.attr("type"))).c_str();
    if (type == "cpu") return {dl::DeviceType::kCpu, 0};
    const nb::object index = device.attr("index");
    const int32_t id = index.is_none() ? 0 : nb::cast<int32_t>(index);
    return {type == "cuda" ? dl::DeviceType::kCuda : kOtherDevice, id};
  }

  nb::object torch_;
  nb::object empty_strided_;
  std::vector<std::pair<nb::object, dl::DataType>> dtypes_;
};

}  // namespace

const TensorLibrary& torch_library() {
  // Guarded by the GIL, and not a static object: its constructor runs Python code, which may let
  // another thread come here. Never destroyed, since the interpreter may be gone by then.
  static const TorchLibrary* library = nullptr;
  if (library == nullptr) {
    auto made = std::make_unique<TorchLibrary>();
    if (library == nullptr) library = made.release();
  }
  return *library;
}

}  // namespace fuser_direct
