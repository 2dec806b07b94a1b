// NumPy arrays, read through `__array_struct__`: a C struct that every NumPy offers, which the
// stable ABI of Python 3.10 can reach where the buffer protocol can't.
#include <nanobind/stl/unique_ptr.h>

#include <memory>
#include <string>
#include <unordered_map>

#include "binding/exchange.h"
#include "binding/framework.h"
#include "core/error.h"
#include "cpu/block_pool.h"

namespace nb = nanobind;

namespace fuser_direct {

namespace {

// Source: NumPy manual, "The array interface protocol", C-struct access.
struct ArrayStruct {
  int two;
  int ndim;
  char kind;
  int itemsize;
  int flags;
  Py_ssize_t* sizes;
  Py_ssize_t* strides_bytes;
  void* data;
  PyObject* descr;
};
static_assert(sizeof(Py_ssize_t) == sizeof(int64_t) && sizeof(ArrayStruct) == 56);

constexpr int kNativeByteOrder = 0x200;
constexpr int kWriteable = 0x400;

nb::object checked(PyObject* result) {
  if (result == nullptr) nb::raise_python_error();
  return nb::steal(result);
}

nb::object call(const nb::object& function, const nb::object& first, const nb::object& second) {
  return checked(PyObject_CallFunctionObjArgs(function.ptr(), first.ptr(), second.ptr(), nullptr));
}

nb::object int_tuple(const std::vector<int64_t>& values, int64_t factor) {
  nb::object tuple = checked(PyTuple_New(static_cast<Py_ssize_t>(values.size())));
  for (size_t i = 0; i < values.size(); ++i) {
    PyObject* item = PyLong_FromLongLong(values[i] * factor);
    if (item == nullptr) nb::raise_python_error();
    PyTuple_SetItem(tuple.ptr(), static_cast<Py_ssize_t>(i), item);  // steals item
  }
  return tuple;
}

// The struct lives as long as the capsule.
class StructView {
 public:
  explicit StructView(PyObject* array)
      : capsule_(checked(PyObject_GetAttrString(array, "__array_struct__"))),
        struct_(static_cast<const ArrayStruct*>(PyCapsule_GetPointer(capsule_.ptr(), nullptr))) {
    if (struct_ == nullptr) nb::raise_python_error();
  }
  const ArrayStruct* operator->() const { return struct_; }

 private:
  nb::object capsule_;
  const ArrayStruct* struct_;
};

std::string dtype_name(PyObject* array) {
  const nb::object dtype = checked(PyObject_GetAttrString(array, "dtype"));
  return nb::str(nb::object(dtype.attr("name"))).c_str();
}

dl::DataType dtype_of(PyObject* array, const StructView& view) {
  const auto bits = static_cast<uint8_t>(view->itemsize * 8);
  switch (view->kind) {
    case 'f':
      return {dl::TypeCode::kFloat, bits, 1};
    case 'i':
      return {dl::TypeCode::kInt, bits, 1};
    case 'u':
      return {dl::TypeCode::kUInt, bits, 1};
    case 'b':
      return {dl::TypeCode::kBool, 8, 1};
    case 'c':
      return {dl::TypeCode::kComplex, bits, 1};
    default:
      break;
  }
  const std::string name = dtype_name(array);
  if (name == "bfloat16") return {dl::TypeCode::kBfloat, 16, 1};
  throw InputError("has the NumPy dtype " + name + ", which no fusion takes; convert it first");
}

const char* numpy_name(dl::DataType dtype) {
  switch (static_cast<int>(dtype.code) * 256 + dtype.bits) {
    case static_cast<int>(dl::TypeCode::kFloat) * 256 + 16:
      return "float16";
    case static_cast<int>(dl::TypeCode::kFloat) * 256 + 32:
      return "float32";
    case static_cast<int>(dl::TypeCode::kFloat) * 256 + 64:
      return "float64";
    case static_cast<int>(dl::TypeCode::kInt) * 256 + 32:
      return "int32";
    case static_cast<int>(dl::TypeCode::kInt) * 256 + 64:
      return "int64";
    case static_cast<int>(dl::TypeCode::kBool) * 256 + 8:
      return "bool";
    case static_cast<int>(dl::TypeCode::kComplex) * 256 + 64:
      return "complex64";
    case static_cast<int>(dl::TypeCode::kComplex) * 256 + 128:
      return "complex128";
    default:
      throw UnsupportedError("NumPy has no array type for DLPack type code " +
                             std::to_string(static_cast<int>(dtype.code)) + " with " +
                             std::to_string(dtype.bits) + " bits");
  }
}

// bfloat16 is a NumPy type only where ml_dtypes has made it one.
nb::object bfloat16() {
  PyObject* module = PyImport_ImportModule("ml_dtypes");
  if (module == nullptr) {
    PyErr_Clear();
    throw UnsupportedError(
        "a bfloat16 output as a NumPy array needs the package ml_dtypes; install it, or cast the "
        "output to float32");
  }
  return nb::steal(module).attr("bfloat16");
}

// Whether the array is made over a block of the CPU pool.
bool is_pooled(const BufferSpec& spec) { return spec.span_bytes() >= cpu::kMinPooledBytes; }

class NumpyLibrary final : public TensorLibrary {
 public:
  NumpyLibrary()
      : numpy_(nb::module_::import_("numpy")),
        empty_(numpy_.attr("empty")),
        ndarray_(numpy_.attr("ndarray")),
        as_array_(numpy_.attr("asarray")),
        uint8_(numpy_.attr("dtype")("uint8")) {}

  bool supports(dl::DeviceType type) const override { return type == dl::DeviceType::kCpu; }

  void read(PyObject* object, ArgumentList& list, TensorArg& out) const override {
    const StructView view(object);
    out.dtype = dtype_of(object, view);
    if ((view->flags & kNativeByteOrder) == 0) {
      throw InputError("has foreign byte order; convert it with astype");
    }
    const auto ndim = static_cast<size_t>(view->ndim);
    out.data = static_cast<char*>(view->data);
    out.device = {dl::DeviceType::kCpu, 0};
    out.ndim = view->ndim;
    out.is_read_only = (view->flags & kWriteable) == 0;
    int64_t* dims = list.dims(2 * ndim);
    for (size_t d = 0; d < ndim; ++d) {
      dims[d] = view->sizes[d];
      dims[ndim + d] = view->strides_bytes[d] / view->itemsize;
      if (view->sizes[d] > 1 && view->strides_bytes[d] % view->itemsize != 0) {
        throw InputError("has a stride that is no multiple of its element size; pass a copy");
      }
    }
    out.sizes = dims;
    out.strides = dims + ndim;
  }

  // The slot's handle is an array of the spec's own shape, or else of its bytes.
  void allocate(const BufferSpec& spec, dl::Device, Slot& slot) const override {
    nb::object array;
    if (is_pooled(spec)) {
      array = as_array_(nb::cast(std::make_unique<cpu::Block>(spec.span_bytes())));
    } else if (spec.is_row_major) {
      array = call(empty_, int_tuple(spec.sizes, 1), dtype(spec.dtype));
    } else {
      array = call(empty_, nb::int_(spec.span_bytes()), uint8_);
    }
    slot.data = static_cast<char*>(StructView(array.ptr())->data);
    slot.handle = array.release().ptr();
  }

  void* wrap(const BufferSpec& spec, Slot& slot) const override {
    const nb::object array = nb::steal(static_cast<PyObject*>(slot.handle));
    slot = Slot{};
    const bool has_shape = spec.is_row_major && !is_pooled(spec);
    if (has_shape) return nb::object(array).release().ptr();
    const nb::object shaped =
        ndarray_(nb::arg("shape") = int_tuple(spec.sizes, 1), nb::arg("dtype") = dtype(spec.dtype),
                 nb::arg("buffer") = array,
                 nb::arg("strides") = int_tuple(spec.strides, spec.dtype.itemsize()));
    return nb::object(shaped).release().ptr();
  }

  // NumPy makes the array from a description, and keeps the object that carries it, and `base` in
  // it, alive.
  void* view(void* base, const TensorArg& tensor, const ViewSpec& spec) const override {
    const nb::object array = nb::borrow(static_cast<PyObject*>(base));
    const int64_t itemsize = tensor.dtype.itemsize();
    const nb::object type = array.attr("dtype");
    nb::dict description;
    description["version"] = 3;
    description["shape"] = int_tuple(spec.sizes, 1);
    description["strides"] = int_tuple(spec.strides, itemsize);
    description["typestr"] = type.attr("str");
    const auto address = reinterpret_cast<uintptr_t>(tensor.data + spec.offset_elems * itemsize);
    description["data"] = nb::make_tuple(address, tensor.is_read_only);
    const nb::object carrier = nb::module_::import_("types").attr("SimpleNamespace")(
        nb::arg("__array_interface__") = description, nb::arg("base") = array);
    nb::object made = as_array_(carrier);
    if (tensor.dtype.code == dl::TypeCode::kBfloat) made = made.attr("view")(type);
    return made.release().ptr();
  }

  void* current_stream(dl::Device) const override { return nullptr; }

  void release(Slot& slot) const noexcept override {
    Py_XDECREF(static_cast<PyObject*>(slot.handle));
    Py_XDECREF(static_cast<PyObject*>(slot.object));
    slot = Slot{};
  }

 private:
  const nb::object& dtype(dl::DataType type) const {
    const int id = static_cast<int>(type.code) * 256 + type.bits;
    const auto found = dtypes_.find(id);
    if (found != dtypes_.end()) return found->second;
    const nb::object scalar_type =
        type.code == dl::TypeCode::kBfloat ? bfloat16() : nb::object(nb::str(numpy_name(type)));
    return dtypes_.emplace(id, numpy_.attr("dtype")(scalar_type)).first->second;
  }

  nb::object numpy_;
  nb::object empty_;
  nb::object ndarray_;
  nb::object as_array_;
  nb::object uint8_;
  mutable std::unordered_map<int, nb::object> dtypes_;  // guarded by the GIL
};

}  // namespace

const TensorLibrary& numpy_library() {
  // Guarded by the GIL, and not a static object: its constructor runs Python code, which may let
  // another thread come here. Never destroyed, since the interpreter may be gone by then.
  static const NumpyLibrary* library = nullptr;
  if (library == nullptr) {
    auto made = std::make_unique<NumpyLibrary>();
    if (library == nullptr) library = made.release();
  }
  return *library;
}

}  // namespace fuser_direct
