// Arrays of any library that offers `__dlpack__`: CuPy, JAX and others that follow the array API.
// Outputs are handed to the library's own `from_dlpack`; without one they are another library's.
#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "binding/dlpack_output.h"
#include "binding/exchange.h"
#include "binding/framework.h"
#include "binding/python_owner.h"
#include "core/error.h"
#include "cpu/strided_copy.h"
#include "cuda/device.h"
#include "cuda/stream_order.h"

namespace nb = nanobind;

namespace fuser_direct {

namespace {

// What `__dlpack__` takes for "no synchronisation".
constexpr int64_t kUnordered = -1;

bool is_cuda(dl::Device device) {
  return device.type == dl::DeviceType::kCuda || device.type == dl::DeviceType::kCudaManaged;
}

dl::Device device_of(nb::handle object) {
  const nb::object device = object.attr("__dlpack_device__")();
  return {static_cast<dl::DeviceType>(nb::cast<int>(device[0])), nb::cast<int32_t>(device[1])};
}

// ---- inputs that a stream still reads ----

// Held until the driver says that the stream is done with them: a library that doesn't know of our
// stream would hand their memory out again.
struct Held {
  std::vector<PyObject*> objects;
  std::atomic<bool> is_done{false};
};

// Guarded by the GIL; never destroyed, since the driver may call until the process ends.
std::vector<std::unique_ptr<Held>>& all_held() {
  static auto* const held = new std::vector<std::unique_ptr<Held>>;
  return *held;
}

int drop_done(void*) noexcept {
  std::vector<std::unique_ptr<Held>>& held = all_held();
  const auto done = std::partition(held.begin(), held.end(),
                                   [](const auto& one) { return !one->is_done.load(); });
  std::vector<std::unique_ptr<Held>> dropped(std::make_move_iterator(done),
                                             std::make_move_iterator(held.end()));
  held.erase(done, held.end());
  for (const auto& one : dropped) {
    for (PyObject* object : one->objects) Py_DECREF(object);
  }
  return 0;
}

// On a thread of the driver's, without the GIL. Where Python's list of pending calls is full, the
// next call drops them.
void mark_done(void* held) {
  static_cast<Held*>(held)->is_done.store(true);
  if (Py_IsInitialized()) Py_AddPendingCall(drop_done, nullptr);
}

// ---- layouts ----

// Before DLPack 1.2 a contiguous tensor could come without strides.
void set_row_major(ArgumentList& list, TensorArg& tensor) {
  int64_t* strides = list.dims(static_cast<size_t>(tensor.ndim));
  int64_t next = 1;
  for (int32_t d = tensor.ndim - 1; d >= 0; --d) {
    strides[d] = next;
    next *= tensor.sizes[d];
  }
  tensor.strides = strides;
}

BufferSpec row_major_spec(dl::DataType dtype, const std::vector<int64_t>& sizes) {
  std::vector<int64_t> strides(sizes.size());
  int64_t next = 1;
  for (size_t d = sizes.size(); d-- > 0;) {
    strides[d] = next;
    next *= std::max<int64_t>(sizes[d], 1);
  }
  return make_buffer_spec(dtype, sizes, std::move(strides));
}

std::shared_ptr<dl::ManagedTensor> share(dl::ManagedTensor* tensor) {
  return std::shared_ptr<dl::ManagedTensor>(tensor, [](dl::ManagedTensor* t) { t->deleter(t); });
}

// A row-major copy of a tensor in CPU memory.
std::shared_ptr<dl::ManagedTensor> packed_copy(const dl::Tensor& tensor) {
  const std::vector<int64_t> sizes(tensor.shape, tensor.shape + tensor.ndim);
  std::shared_ptr<dl::ManagedTensor> made =
      share(make_cpu_tensor(row_major_spec(tensor.dtype, sizes)));
  cpu::strided_copy(to_argument(made->tensor, 0), to_argument(tensor, 0));
  return made;
}

// ---- the library ----

// The stream of the call that this thread reads the arguments of.
struct CallStream {
  const void* library = nullptr;
  dl::Device device{dl::DeviceType::kCpu, 0};
  void* stream = nullptr;
};
thread_local CallStream call_stream;

class DlpackLibrary final : public TensorLibrary {
 public:
  // space: what has from_dlpack, or nothing. is_immutable: no array is ever written to.
  DlpackLibrary(nb::object space, bool is_immutable)
      : space_(std::move(space)), is_immutable_(is_immutable) {
    if (space_.is_valid()) from_dlpack_ = space_.attr("from_dlpack");
  }

  bool is_of(const nb::object& space, bool is_immutable) const {
    return space_.is(space) && is_immutable_ == is_immutable;
  }

  bool supports(dl::DeviceType) const override { return from_dlpack_.is_valid(); }

  // The capsule stays unconsumed, so it frees the tensor when the list lets go of it.
  void read(PyObject* object, ArgumentList& list, TensorArg& out) const override {
    const dl::Device device = device_of(object);
    const Consumer consumer = is_cuda(device) ? consumer_of(list, device) : Consumer{};
    nb::object capsule = make_capsule(object, device, consumer.number);
    const CapsuleView view = view_capsule(capsule);
    out = to_argument(*view.tensor, view.flags);
    out.is_read_only = out.is_read_only || is_immutable_;
    if (out.strides == nullptr) set_row_major(list, out);
    if (consumer.number != kUnordered && (is_immutable_ || !consumer.is_own)) {
      list.keep_for_stream(std::move(capsule), out.device, consumer.stream);
    } else {
      list.keep(std::move(capsule));
    }
  }

  void allocate(const BufferSpec& spec, dl::Device device, Slot& slot) const override {
    dl::ManagedTensor* made = device.type == dl::DeviceType::kCpu
                                  ? make_cpu_tensor(spec)
                                  : make_device_tensor(spec, device);
    slot.handle = made;
    slot.data = made->tensor.address();
  }

  // Steps that run Python code and `adopt` know what to do with it.
  void* wrap(const BufferSpec&, Slot& slot) const override {
    auto tensor = share(static_cast<dl::ManagedTensor*>(slot.handle));
    slot = Slot{};
    void* stream = is_cuda(tensor->tensor.device) ? current_stream(tensor->tensor.device) : nullptr;
    return nb::cast(DlpackOutput{std::move(tensor), stream}).release().ptr();
  }

  void* view(void* base, const TensorArg& tensor, const ViewSpec& spec) const override {
    nb::object owner = nb::borrow(static_cast<PyObject*>(base));
    // What holds the memory itself: a JAX array's may be deleted or donated.
    if (library_of(Py_TYPE(owner.ptr())) == this) {
      owner = make_capsule(owner.ptr(), tensor.device, kUnordered);
    }
    char* data = tensor.data + spec.offset_elems * tensor.dtype.itemsize();
    const BufferSpec layout = make_buffer_spec(tensor.dtype, spec.sizes, spec.strides);
    dl::ManagedTensor* made = make_owned_tensor(layout, tensor.device, data, own(std::move(owner)));
    if (tensor.is_read_only) made->flags |= dl::kReadOnly;
    void* stream = is_cuda(tensor.device) ? current_stream(tensor.device) : nullptr;
    return to_object({share(made), stream});
  }

  bool adopts() const override { return true; }

  void* adopt(void* object) const override {
    const nb::object made = nb::borrow(static_cast<PyObject*>(object));
    DlpackOutput* output = nullptr;
    if (nb::try_cast(made, output)) return to_object(*output);
    const TensorLibrary* library = library_of(Py_TYPE(made.ptr()));
    if (library == this || library == nullptr) return nb::object(made).release().ptr();
    ArgumentList list;
    TensorArg tensor;
    library->read(made.ptr(), list, tensor);
    const ViewSpec all{0,
                       {tensor.sizes, tensor.sizes + tensor.ndim},
                       {tensor.strides, tensor.strides + tensor.ndim},
                       0};
    return view(made.ptr(), tensor, all);
  }

  void* current_stream(dl::Device device) const override {
    if (call_stream.library == this && call_stream.device == device) return call_stream.stream;
    return ask_for_stream(device);
  }

  void wait_for(void* object, dl::Device device) const override {
    if (!is_cuda(device) || library_of(Py_TYPE(static_cast<PyObject*>(object))) == this) return;
    const nb::handle made(static_cast<PyObject*>(object));
    made.attr("__dlpack__")(nb::arg("stream") = stream_number(current_stream(device)));
  }

  void release(Slot& slot) const noexcept override {
    auto* managed = static_cast<dl::ManagedTensor*>(slot.handle);
    if (managed != nullptr) managed->deleter(managed);
    Py_XDECREF(static_cast<PyObject*>(slot.object));
    slot = Slot{};
  }

 private:
  // The stream that reads an argument.
  struct Consumer {
    int64_t number = kUnordered;
    void* stream = nullptr;
    bool is_own = true;  // the library itself works on it
  };

  // Kernels run on the stream of the first argument on the GPU whose library makes outputs there.
  Consumer consumer_of(const ArgumentList& list, dl::Device device) const {
    const Framework* first = list.first_on_cuda();
    if (first == nullptr && from_dlpack_.is_valid()) {
      void* stream = ask_for_stream(device);
      return {stream_number(stream), stream, true};
    }
    if (first == nullptr) first = imported_torch();
    if (first == nullptr) return {};
    try {
      void* stream = first->current_stream(device);
      return {stream_number(stream), stream, first == this};
    } catch (const nb::python_error&) {
      return {};  // it has no GPU, so nothing will be queued
    }
  }

  // A library tells which stream it works on when it is about to take a tensor over.
  void* ask_for_stream(dl::Device device) const {
    const nb::object probe = nb::cast(StreamProbe{{dl::DeviceType::kCuda, device.id}});
    auto* asked = nb::inst_ptr<StreamProbe>(probe);
    try {
      from_dlpack_(probe);
    } catch (const nb::python_error&) {
      if (!asked->is_asked) throw;
    }
    call_stream = {this, device, asked->stream};
    return asked->stream;
  }

  nb::object make_capsule(nb::handle object, dl::Device device, int64_t stream) const {
    const nb::object produce = object.attr("__dlpack__");
    nb::dict options;
    if (is_cuda(device) && nb::hasattr(object, "block_until_ready")) {
      // JAX: its waits on streams of others fail (CUDA_ERROR_INVALID_HANDLE, 0.11). Waiting here
      // leaves nothing to order.
      object.attr("block_until_ready")();
    } else if (is_cuda(device)) {
      options["stream"] = stream;
    }
    if (takes_version_) {
      nb::dict versioned;
      versioned.update(options);
      versioned["max_version"] = nb::make_tuple(dl::kMajorVersion, dl::kMinorVersion);
      try {
        return produce(**versioned);
      } catch (const nb::python_error& error) {
        if (!error.matches(PyExc_TypeError)) throw;
        takes_version_ = false;
      }
    }
    return produce(**options);
  }

  dl::ManagedTensor* make_device_tensor(const BufferSpec& spec, dl::Device device) const {
    const size_t bytes = spec.span_bytes();
    std::shared_ptr<void> owner;
    char* data = nullptr;
    if (bytes > 0 && is_immutable_) {
      owner = cuda::allocate_in_order(device.id, bytes, current_stream(device));
      data = static_cast<char*>(owner.get());
    } else if (bytes > 0) {
      const cuda::DeviceGuard guard(device.id);
      nb::object array = space_.attr("empty")(bytes, nb::arg("dtype") = space_.attr("uint8"));
      const nb::object capsule = make_capsule(array, device, kUnordered);
      data = view_capsule(capsule).tensor->address();
      owner = own(std::move(array));
    }
    return make_owned_tensor(spec, device, data, std::move(owner));
  }

  void* to_object(const DlpackOutput& output) const {
    const dl::Tensor& tensor = output.tensor->tensor;
    const std::vector<int64_t> sizes(tensor.shape, tensor.shape + tensor.ndim);
    const bool is_row_major = std::equal(tensor.strides, tensor.strides + tensor.ndim,
                                         row_major_spec(tensor.dtype, sizes).strides.begin());
    const bool can_pack = !is_row_major && tensor.device.type == dl::DeviceType::kCpu;
    try {
      return from_dlpack_(nb::cast(output)).release().ptr();
    } catch (const nb::python_error& error) {
      if (!error.matches(PyExc_Exception)) throw;
      if (!can_pack) refuse(tensor, error);
    }
    // Some libraries have no strides, or not all.
    return to_object({packed_copy(tensor), nullptr});
  }

  [[noreturn]] void refuse(const dl::Tensor& tensor, const nb::python_error& error) const {
    throw UnsupportedError("execute: an output of sizes " + dims_text(tensor.shape, tensor.ndim) +
                           " and strides " + dims_text(tensor.strides, tensor.ndim) +
                           " can't be handed over; " + nb::str(nb::handle(from_dlpack_)).c_str() +
                           " says: " + nb::str(error.value()).c_str());
  }

  nb::object space_;
  nb::object from_dlpack_;
  bool is_immutable_;
  mutable bool takes_version_ = true;  // guarded by the GIL
};

// The array API's namespace of an array, or the package of its type, if they have from_dlpack.
nb::object space_of(PyTypeObject* type, PyObject* instance) {
  constexpr const char* kFunction = "from_dlpack";
  const nb::handle kind(reinterpret_cast<PyObject*>(type));
  if (instance != nullptr && nb::hasattr(kind, "__array_namespace__")) {
    nb::object space = nb::handle(instance).attr("__array_namespace__")();
    if (nb::hasattr(space, kFunction)) return space;
  }
  const std::string module = nb::str(nb::object(kind.attr("__module__"))).c_str();
  const std::string package = module.substr(0, module.find('.'));
  if (!imported_attribute(package.c_str(), kFunction).is_valid()) return {};
  return nb::module_::import_(package.c_str());
}

}  // namespace

void release_after(std::vector<PyObject*> objects, dl::Device device, void* stream) noexcept {
  drop_done(nullptr);
  auto held = std::make_unique<Held>();
  held->objects = std::move(objects);
  Held* data = held.get();
  all_held().push_back(std::move(held));
  if (!cuda::call_after(device.id, stream, mark_done, data)) {
    data->is_done.store(true);
    drop_done(nullptr);
  }
}

const TensorLibrary& dlpack_library(PyTypeObject* type, PyObject* instance, bool is_immutable) {
  constexpr size_t kMaxLibraries = 64;
  // Guarded by the GIL; never destroyed, since the interpreter may be gone by then.
  static auto* const libraries = new std::vector<std::unique_ptr<DlpackLibrary>>;
  nb::object space = space_of(type, instance);
  // A library that makes a new namespace for each array would have no end.
  if (libraries->size() >= kMaxLibraries) space = nb::object();
  for (const auto& library : *libraries) {
    if (library->is_of(space, is_immutable)) return *library;
  }
  libraries->push_back(std::make_unique<DlpackLibrary>(std::move(space), is_immutable));
  return *libraries->back();
}

}  // namespace fuser_direct
