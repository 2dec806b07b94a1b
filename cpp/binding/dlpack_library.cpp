// Arrays of any library that offers `__dlpack__`: they are read; outputs come from another library.
#include <string>

#include "binding/exchange.h"
#include "binding/framework.h"
#include "core/error.h"

namespace nb = nanobind;

namespace fuser_direct {

namespace {

bool is_on_cuda(nb::handle object) {
  const nb::object device = object.attr("__dlpack_device__")();
  const auto type = nb::cast<int>(device[0]);
  return type == static_cast<int>(dl::DeviceType::kCuda) ||
         type == static_cast<int>(dl::DeviceType::kCudaManaged);
}

// stream -1: no synchronisation; work is queued on the stream that PyTorch calls current.
nb::object make_capsule(nb::handle object) {
  const nb::object produce = object.attr("__dlpack__");
  return is_on_cuda(object) ? produce(nb::arg("stream") = -1) : produce();
}

class DlpackLibrary final : public TensorLibrary {
 public:
  bool supports(dl::DeviceType) const override { return false; }

  // The capsule stays unconsumed, so it frees the tensor when the list lets go of it.
  void read(PyObject* object, ArgumentList& list, TensorArg& out) const override {
    nb::object capsule = make_capsule(object);
    if (PyCapsule_IsValid(capsule.ptr(), "dltensor_versioned") != 0) {
      const auto* managed = static_cast<const dl::ManagedTensor*>(
          PyCapsule_GetPointer(capsule.ptr(), "dltensor_versioned"));
      if (managed->version.major != dl::kMajorVersion) {
        throw InputError("comes by a DLPack version that isn't known here");
      }
      out = to_argument(managed->tensor, managed->flags);
    } else {
      const auto* managed = static_cast<const dl::LegacyManagedTensor*>(
          PyCapsule_GetPointer(capsule.ptr(), "dltensor"));
      if (managed == nullptr) nb::raise_python_error();
      out = to_argument(managed->tensor, 0);
    }
    if (out.strides == nullptr) set_row_major(list, out);
    list.keep(std::move(capsule));
  }

  void allocate(const BufferSpec&, dl::Device, Slot&) const override { refuse("makes no outputs"); }
  void* wrap(const BufferSpec&, Slot&) const override { refuse("makes no outputs"); }
  void* view(void*, const TensorArg&, const ViewSpec&) const override {
    refuse("can't share its memory with an output");
  }
  void* current_stream(dl::Device) const override { refuse("has no stream"); }
  void release(Slot&) const noexcept override {}

 private:
  // Before DLPack 1.2 a contiguous tensor could come without strides.
  static void set_row_major(ArgumentList& list, TensorArg& tensor) {
    int64_t* strides = list.dims(static_cast<size_t>(tensor.ndim));
    int64_t next = 1;
    for (int32_t d = tensor.ndim - 1; d >= 0; --d) {
      strides[d] = next;
      next *= tensor.sizes[d];
    }
    tensor.strides = strides;
  }

  [[noreturn]] static void refuse(const char* what) {
    throw UnsupportedError(std::string("an array known only by __dlpack__ ") + what +
                           "; pass a PyTorch tensor or a NumPy array");
  }
};

}  // namespace

const TensorLibrary& dlpack_library() {
  static const DlpackLibrary library;
  return library;
}

}  // namespace fuser_direct
