// The structs of the DLPack 1.x binary interface that tensors cross by.
// Source: the DLPack specification, version 1.3 (dlpack.h); the layouts are pinned below.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fuser_direct::dl {

constexpr uint32_t kMajorVersion = 1;
constexpr uint32_t kMinorVersion = 3;

enum class DeviceType : int32_t { kCpu = 1, kCuda = 2, kCudaHost = 3, kCudaManaged = 13 };

struct Device {
  DeviceType type;
  int32_t id;
};

inline bool operator==(Device a, Device b) { return a.type == b.type && a.id == b.id; }
inline bool operator!=(Device a, Device b) { return !(a == b); }

enum class TypeCode : uint8_t {
  kInt = 0,
  kUInt = 1,
  kFloat = 2,
  kBfloat = 4,
  kComplex = 5,
  kBool = 6,
};

struct DataType {
  TypeCode code;
  uint8_t bits;
  uint16_t lanes;

  constexpr int64_t itemsize() const { return (int64_t{bits} * lanes + 7) / 8; }
};

inline bool operator==(DataType a, DataType b) {
  return a.code == b.code && a.bits == b.bits && a.lanes == b.lanes;
}
inline bool operator!=(DataType a, DataType b) { return !(a == b); }

// A borrowed description; sizes and strides count elements, byte_offset is added to data.
struct Tensor {
  void* data;
  Device device;
  int32_t ndim;
  DataType dtype;
  int64_t* shape;
  int64_t* strides;
  uint64_t byte_offset;

  char* address() const { return static_cast<char*>(data) + byte_offset; }
};

struct Version {
  uint32_t major;
  uint32_t minor;
};

constexpr uint64_t kReadOnly = 1;

// An owned tensor: whoever holds it calls deleter(self) once, from any thread.
struct ManagedTensor {
  Version version;
  void* manager_ctx;
  void (*deleter)(ManagedTensor* self);
  uint64_t flags;
  Tensor tensor;
};

// The layout before version 1.0, which older producers still hand out.
struct LegacyManagedTensor {
  Tensor tensor;
  void* manager_ctx;
  void (*deleter)(LegacyManagedTensor* self);
};

using SetError = void (*)(void* error_ctx, const char* kind, const char* message);

struct ExchangeApiHeader {
  Version version;
  ExchangeApiHeader* previous;
};

// A library's function table, behind `__dlpack_c_exchange_api__` of its tensor type. Functions give
// 0 for success; those that take a Python object need the GIL and set a Python error otherwise.
struct ExchangeApi {
  ExchangeApiHeader header;
  int (*allocate)(Tensor* prototype, ManagedTensor** out, void* error_ctx, SetError set_error);
  int (*from_object)(void* object, ManagedTensor** out);  // owned
  int (*to_object)(ManagedTensor* tensor, void** out);    // steals the tensor
  int (*borrow)(void* object, Tensor* out);               // lives while the object is unchanged
  int (*current_stream)(DeviceType type, int32_t id, void** out);
};

static_assert(sizeof(Device) == 8 && sizeof(DataType) == 4 && sizeof(Version) == 8);
static_assert(offsetof(Tensor, device) == 8 && offsetof(Tensor, ndim) == 16);
static_assert(offsetof(Tensor, dtype) == 20 && offsetof(Tensor, shape) == 24);
static_assert(offsetof(Tensor, strides) == 32 && offsetof(Tensor, byte_offset) == 40);
static_assert(sizeof(Tensor) == 48);
static_assert(offsetof(ManagedTensor, manager_ctx) == 8 && offsetof(ManagedTensor, deleter) == 16);
static_assert(offsetof(ManagedTensor, flags) == 24 && offsetof(ManagedTensor, tensor) == 32);
static_assert(offsetof(LegacyManagedTensor, deleter) == 56);
static_assert(sizeof(ExchangeApiHeader) == 16 && offsetof(ExchangeApi, current_stream) == 48);

}  // namespace fuser_direct::dl
