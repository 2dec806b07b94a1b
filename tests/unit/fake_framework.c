/* A tensor library, behind the DLPack C exchange API, of CUDA tensors without memory; and a count
 * of what a call asks of it and of malloc. Preloaded, so that the count takes in the whole process.
 */
#include <stddef.h>
#include <stdint.h>

void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void Py_IncRef(void*);

static long mallocs, allocations, frees, streams, reads, wraps;

void* malloc(size_t size) { return ++mallocs, __libc_malloc(size); }
void* calloc(size_t count, size_t size) { return ++mallocs, __libc_calloc(count, size); }
void* realloc(void* old, size_t size) { return ++mallocs, __libc_realloc(old, size); }

/* malloc, allocate, free, current_stream, borrow, to_object since the last clear. */
void fake_counts(long* out) {
  out[0] = mallocs, out[1] = allocations, out[2] = frees;
  out[3] = streams, out[4] = reads, out[5] = wraps;
}
void fake_clear_counts(void) { mallocs = allocations = frees = streams = reads = wraps = 0; }

struct tensor {
  void* data;
  int32_t device_type, device_id, ndim;
  uint8_t code, bits;
  uint16_t lanes;
  int64_t *shape, *strides;
  uint64_t byte_offset;
};
struct managed {
  uint32_t major, minor;
  void* context;
  void (*deleter)(struct managed*);
  uint64_t flags;
  struct tensor tensor;
};

static int64_t dims[] = {16, 256}, steps[] = {256, 1};
static struct managed pool[8];
static void* wrapped; /* the Python object that every tensor is wrapped as */

void fake_wrap_as(void* object) { wrapped = object; }

static struct tensor some_tensor(void) {
  struct tensor t = {(void*)0x10000, 2, 0, 2, 2, 32, 1, dims, steps, 0};
  return t;
}
static void drop(struct managed* self) { ++frees, self->context = NULL; }
static int allocate(struct tensor* prototype, struct managed** out, void* context, void* set_error) {
  (void)context, (void)set_error;
  for (int i = 0; i < 8; ++i) {
    if (pool[i].context) continue;
    struct managed made = {1, 3, &pool[i], drop, 0, *prototype};
    made.tensor.data = (void*)(uintptr_t)(0x20000 + 0x10000 * i);
    made.tensor.strides = steps;
    return pool[i] = made, *out = &pool[i], ++allocations, 0;
  }
  return -1;
}
static int from_object(void* object, struct managed** out) { return (void)object, (void)out, -1; }
static int to_object(struct managed* tensor, void** out) {
  tensor->context = NULL;
  return Py_IncRef(wrapped), *out = wrapped, ++wraps, 0;
}
static int borrow(void* object, struct tensor* out) {
  return (void)object, *out = some_tensor(), ++reads, 0;
}
static int current_stream(int32_t type, int32_t id, void** out) {
  return (void)type, (void)id, *out = (void*)0x55, ++streams, 0;
}

struct {
  uint32_t major, minor;
  void* previous;
  void *allocate, *from_object, *to_object, *borrow, *current_stream;
} fake_api = {1, 3, NULL, allocate, from_object, to_object, borrow, current_stream};
