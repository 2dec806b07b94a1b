// Tensor types with the DLPack C exchange API (PyTorch 2.10 and later): no Python call on any path.
#include <memory>
#include <string>

#include "binding/framework.h"
#include "core/error.h"

namespace nb = nanobind;

namespace fuser_direct {

namespace {

// The message of a failed allocation.
void keep_message(void* text, const char*, const char* message) {
  *static_cast<std::string*>(text) = message;
}

dl::ManagedTensor* managed(const Slot& slot) {
  return static_cast<dl::ManagedTensor*>(slot.handle);
}

void free_managed(dl::ManagedTensor* tensor) noexcept {
  if (tensor->deleter != nullptr) tensor->deleter(tensor);
}

// Whether some dim has neighbouring elements.
bool has_unit_stride(const TensorArg& tensor) {
  for (int32_t d = 0; d < tensor.ndim; ++d) {
    if (tensor.sizes[d] > 1 && tensor.strides[d] == 1) return true;
  }
  return false;
}

bool flag(PyObject* object, const char* method) {
  const nb::object result = nb::steal(PyObject_CallMethod(object, method, nullptr));
  if (!result.is_valid()) nb::raise_python_error();
  return result.ptr() == Py_True;
}

// PyTorch hands out a lazily conjugated or negated tensor's memory as it is. Only complex tensors
// are conjugated, and negated ones are their imaginary parts, which no dim walks in steps of one.
void refuse_lazy_values(PyObject* object, const TensorArg& tensor) {
  const bool is_complex = tensor.dtype.code == dl::TypeCode::kComplex;
  if (is_complex && flag(object, "is_conj")) {
    throw InputError("is a lazy conjugate; pass tensor.resolve_conj()");
  }
  if ((is_complex || !has_unit_stride(tensor)) && flag(object, "is_neg")) {
    throw InputError("is a lazy negation; pass tensor.resolve_neg()");
  }
}

class ExchangeLibrary final : public TensorLibrary {
 public:
  ExchangeLibrary(const dl::ExchangeApi* api, bool is_torch) : api_(api), is_torch_(is_torch) {}

  const dl::ExchangeApi* api() const { return api_; }

  bool supports(dl::DeviceType type) const override {
    return is_torch_ || type == dl::DeviceType::kCpu;
  }

  void read(PyObject* object, ArgumentList&, TensorArg& out) const override {
    dl::Tensor tensor;
    if (api_->borrow(object, &tensor) != 0) nb::raise_python_error();
    out = to_argument(tensor, 0);
    if (is_torch_ && out.dtype.code >= dl::TypeCode::kFloat &&
        out.dtype.code != dl::TypeCode::kBool) {
      refuse_lazy_values(object, out);
    }
  }

  void allocate(const BufferSpec& spec, dl::Device device, Slot& slot) const override {
    const bool is_cpu = device.type == dl::DeviceType::kCpu;
    dl::ManagedTensor* made = is_cpu ? make_cpu_tensor(spec) : make_device_tensor(spec, device);
    slot.handle = made;
    slot.data = made->tensor.address();
  }

  void* wrap(const BufferSpec&, Slot& slot) const override {
    dl::ManagedTensor* tensor = managed(slot);
    slot = Slot{};
    return to_object(tensor);
  }

  void* view(void* base, const TensorArg& tensor, const ViewSpec& spec) const override {
    dl::ManagedTensor* owned = nullptr;
    if (api_->from_object(base, &owned) != 0) nb::raise_python_error();
    char* data = tensor.data + spec.offset_elems * tensor.dtype.itemsize();
    return to_object(make_wrapper(owned, data, spec.sizes, spec.strides));
  }

  void* current_stream(dl::Device device) const override {
    void* stream = nullptr;
    if (api_->current_stream(device.type, device.id, &stream) != 0) nb::raise_python_error();
    return stream;
  }

  void release(Slot& slot) const noexcept override {
    if (slot.handle != nullptr) free_managed(managed(slot));
    Py_XDECREF(static_cast<PyObject*>(slot.object));
    slot = Slot{};
  }

 private:
  // A tensor in the library's own memory; strides that it doesn't make are put over a flat one.
  dl::ManagedTensor* make_device_tensor(const BufferSpec& spec, dl::Device device) const {
    dl::Tensor prototype{};
    prototype.device = device;
    prototype.dtype = spec.dtype;
    int64_t span = spec.span_elems;
    if (spec.is_row_major) {
      prototype.ndim = static_cast<int32_t>(spec.sizes.size());
      prototype.shape = const_cast<int64_t*>(spec.sizes.data());  // read only, by the protocol
    } else {
      prototype.ndim = 1;
      prototype.shape = &span;
    }
    dl::ManagedTensor* made = nullptr;
    std::string message;
    if (api_->allocate(&prototype, &made, &message, keep_message) != 0) {
      PyErr_Clear();
      throw CudaError("allocating " + std::to_string(spec.span_bytes()) +
                      " bytes on cuda:" + std::to_string(device.id) + " failed: " + message);
    }
    if (spec.is_row_major) return made;
    return make_wrapper(made, made->tensor.address(), spec.sizes, spec.strides);
  }

  void* to_object(dl::ManagedTensor* tensor) const {
    void* object = nullptr;
    if (api_->to_object(tensor, &object) != 0) nb::raise_python_error();
    return object;
  }

  const dl::ExchangeApi* api_;
  bool is_torch_;
};

}  // namespace

const TensorLibrary& exchange_library(const dl::ExchangeApi* api, bool is_torch) {
  static auto* const libraries = new std::vector<std::unique_ptr<ExchangeLibrary>>;
  for (const auto& library : *libraries) {
    if (library->api() == api) return *library;
  }
  libraries->push_back(std::make_unique<ExchangeLibrary>(api, is_torch));
  return *libraries->back();
}

}  // namespace fuser_direct
