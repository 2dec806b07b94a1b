/* A libcuda.so.1 that runs nothing and keeps a log of what it was asked for.
 *
 * Two devices: 0 is an sm_90 with clusters, 1 an sm_80. Environment: FAKE_VERSION (12040),
 * FAKE_DEVICES (2), FAKE_CAPTURE (0), and the results FAKE_INIT, FAKE_LOAD and FAKE_LAUNCH (0).
 * Kernels have the parameters (void*, int, double). As in a real driver, a child forked after cuInit
 * can't use it: here any call from one but cuInit aborts.
 */
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char log_text[1 << 16];
static size_t log_used;
static pid_t owner;
static __thread uintptr_t current;

const char* fake_log(void) { return log_text; }
void fake_clear(void) { log_used = 0, log_text[0] = 0; }
void fake_set_current(uintptr_t context) { current = context; }
uintptr_t fake_current(void) { return current; }

static void note(const char* format, ...) {
  static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
  va_list args;
  pthread_mutex_lock(&mutex);
  va_start(args, format);
  int n = vsnprintf(log_text + log_used, sizeof(log_text) - log_used, format, args);
  va_end(args);
  if (n > 0) log_used += (size_t)n;
  if (log_used >= sizeof(log_text)) abort();
  pthread_mutex_unlock(&mutex);
}

static int setting(const char* name, int otherwise) {
  const char* value = getenv(name);
  return value ? atoi(value) : otherwise;
}

static void entered(void) {
  if (getpid() != owner) abort();
}

int cuDriverGetVersion(int* version) { return *version = setting("FAKE_VERSION", 12040), 0; }

int cuInit(unsigned flags) {
  (void)flags;
  note("init\n");
  if (owner && owner != getpid()) return 3;
  int result = setting("FAKE_INIT", 0);
  if (result == 0) owner = getpid();
  return result;
}

static int get_error_name(int result, const char** name) {
  *name = result == 2     ? "CUDA_ERROR_OUT_OF_MEMORY"
          : result == 209 ? "CUDA_ERROR_NO_BINARY_FOR_GPU"
          : result == 222 ? "CUDA_ERROR_UNSUPPORTED_PTX_VERSION"
          : result == 700 ? "CUDA_ERROR_ILLEGAL_ADDRESS"
          : result == 803 ? "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"
                          : "CUDA_ERROR_OTHER";
  return 0;
}
static int get_error_string(int result, const char** text) {
  (void)result;
  return *text = "text of the error", 0;
}
static int device_count(int* count) { return entered(), *count = setting("FAKE_DEVICES", 2), 0; }
static int device_get(int* device, int ordinal) { return entered(), *device = ordinal, 0; }
static int device_name(char* name, int size, int device) {
  entered();
  snprintf(name, (size_t)size, "Fake GPU %d", device);
  return 0;
}
static int device_attribute(int* value, int which, int device) {
  entered();
  switch (which) {
    case 1:
    case 2:
    case 3:
    case 4:
      *value = which == 4 ? 64 : 1024;
      return 0;
    case 5:
      *value = 2147483647;
      return 0;
    case 6:
    case 7:
      *value = 65535;
      return 0;
    case 75:
      *value = device == 0 ? 9 : 8;
      return 0;
    case 76:
      *value = 0;
      return 0;
    case 97:
      *value = device == 0 ? 232448 : 166912;
      return 0;
    case 120:
      *value = device == 0;
      return 0;
    default:
      *value = which;
      return 0;
  }
}
static int device_memory(size_t* bytes, int device) {
  entered();
  return (void)device, *bytes = (size_t)3 << 35, 0;
}
static int primary_retain(uintptr_t* context, int device) {
  entered();
  note("retain %d\n", device);
  return *context = 0x1000 + (uintptr_t)device, 0;
}
static int get_current(uintptr_t* context) { return entered(), *context = current, 0; }
static int set_current(uintptr_t context) { return entered(), current = context, 0; }
static int exchange_capture_mode(int* mode) {
  static __thread int now = 0;
  entered();
  int former = now;
  now = *mode, *mode = former;
  note("capture mode %d\n", now);
  return 0;
}
static int library_load(uintptr_t* library, const void* image, int* keys, void** values, unsigned n,
                        int* k2, void** v2, unsigned n2) {
  (void)k2, (void)v2, (void)n2;
  entered();
  int result = setting("FAKE_LOAD", 0);
  for (unsigned i = 0; result && i < n; ++i)
    if (keys[i] == 5) strcpy(values[i], "ptxas log line");
  note("load %.4s in %lx -> %d\n", (const char*)image, (unsigned long)current, result);
  return *library = 0x77, result;
}
static int library_kernel(uintptr_t* kernel, uintptr_t library, const char* name) {
  entered();
  (void)library;
  return *kernel = 0x88, strcmp(name, "missing") == 0 ? 500 : 0;
}
static int kernel_function(uintptr_t* function, uintptr_t kernel) {
  entered();
  (void)kernel;
  return *function = current + 0x90, 0; /* a function belongs to the context that is current */
}
static int kernel_get(int* value, int which, uintptr_t kernel, int device) {
  entered();
  (void)kernel, (void)device;
  *value = which == 0 ? 768 : which == 1 ? 1024 : which == 4 ? 64 : 0;
  return 0;
}
static int kernel_set(int which, int value, uintptr_t kernel, int device) {
  entered();
  (void)kernel;
  note("set %d to %d on %d\n", which, value, device);
  return 0;
}
static int occupancy(int* blocks, uintptr_t function, int threads, size_t shared) {
  entered();
  (void)function;
  return *blocks = threads + (int)shared, 0;
}

struct attribute {
  unsigned id, pad, cluster[3];
  char rest[52];
};
struct config {
  unsigned grid[3], block[3], shared;
  void* stream;
  struct attribute* attributes;
  unsigned num_attributes;
};
static int launch(const struct config* c, uintptr_t function, void** params, void** extra) {
  entered();
  (void)extra;
  int result = setting("FAKE_LAUNCH", 0);
  /* One line in one piece, whatever other threads note meanwhile. */
  char line[1024];
  int n = snprintf(line, sizeof(line),
                   "launch %lx in %lx grid %u,%u,%u block %u,%u,%u shared %u stream %lx",
                   (unsigned long)function, (unsigned long)current, c->grid[0], c->grid[1],
                   c->grid[2], c->block[0], c->block[1], c->block[2], c->shared,
                   (unsigned long)c->stream);
  for (unsigned k = 0; k < c->num_attributes; ++k)
    n += snprintf(line + n, sizeof(line) - (size_t)n, " attribute %u of %u,%u,%u",
                  c->attributes[k].id, c->attributes[k].cluster[0], c->attributes[k].cluster[1],
                  c->attributes[k].cluster[2]);
  note("%s args %lx %d %g\n", line, *(unsigned long*)params[0], *(int*)params[1],
       *(double*)params[2]);
  return result;
}

static int allocate(uint64_t* address, size_t bytes, void* stream) {
  static uint64_t next = 0x500000;
  entered();
  note("allocate %zu in %lx on %lx\n", bytes, (unsigned long)current, (unsigned long)stream);
  *address = next, next += 0x10000;
  return 0;
}
static int free_memory(uint64_t address, void* stream) {
  note("free %lx on %lx\n", (unsigned long)address, (unsigned long)stream);
  return 0;
}
static int event_create(uintptr_t* event, unsigned flags) {
  return (void)flags, *event = 0xe0, 0;
}
static int event_record(uintptr_t event, void* stream) {
  return (void)event, note("record on %lx\n", (unsigned long)stream), 0;
}
static int event_destroy(uintptr_t event) { return (void)event, 0; }
static int stream_wait(void* stream, uintptr_t event, unsigned flags) {
  return (void)event, (void)flags, note("wait on %lx\n", (unsigned long)stream), 0;
}
static int is_capturing(void* stream, int* status) {
  return (void)stream, *status = setting("FAKE_CAPTURE", 0), 0;
}
/* Kept until fake_finish, which stands for the end of the stream's work. */
static struct {
  void (*function)(void*);
  void* data;
} queued[16];
static int queued_count;
static int host_function(void* stream, void (*function)(void*), void* data) {
  note("call after %lx\n", (unsigned long)stream);
  queued[queued_count].function = function, queued[queued_count++].data = data;
  return 0;
}
void fake_finish(void) {
  for (int i = 0; i < queued_count; ++i) queued[i].function(queued[i].data);
  queued_count = 0;
}

int cuGetProcAddress_v2(const char* name, void** address, int version, uint64_t flags, int* found) {
  static const struct {
    const char* name;
    int since;
    void* address;
  } table[] = {
      {"cuGetErrorName", 6000, get_error_name},
      {"cuGetErrorString", 6000, get_error_string},
      {"cuDeviceGetCount", 2000, device_count},
      {"cuDeviceGet", 2000, device_get},
      {"cuDeviceGetName", 2000, device_name},
      {"cuDeviceGetAttribute", 2000, device_attribute},
      {"cuDeviceTotalMem", 3020, device_memory},
      {"cuDevicePrimaryCtxRetain", 7000, primary_retain},
      {"cuCtxGetCurrent", 4000, get_current},
      {"cuCtxSetCurrent", 4000, set_current},
      {"cuThreadExchangeStreamCaptureMode", 10010, exchange_capture_mode},
      {"cuLibraryLoadData", 12000, library_load},
      {"cuLibraryGetKernel", 12000, library_kernel},
      {"cuKernelGetFunction", 12000, kernel_function},
      {"cuKernelGetAttribute", 12000, kernel_get},
      {"cuKernelSetAttribute", 12000, kernel_set},
      {"cuOccupancyMaxActiveBlocksPerMultiprocessor", 6050, occupancy},
      {"cuMemAllocAsync", 11020, allocate},
      {"cuMemFreeAsync", 11020, free_memory},
      {"cuEventCreate", 2000, event_create},
      {"cuEventRecord", 2000, event_record},
      {"cuEventDestroy", 4000, event_destroy},
      {"cuStreamWaitEvent", 3020, stream_wait},
      {"cuStreamIsCapturing", 10000, is_capturing},
      {"cuLaunchHostFunc", 10000, host_function},
      {"cuLaunchKernelEx", 11060, launch},
  };
  (void)flags, (void)found;
  for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); ++i)
    /* A driver has each form from one version on; asked for an earlier one, it hands out another
     * form. */
    if (strcmp(table[i].name, name) == 0 && version == table[i].since)
      return *address = table[i].address, 0;
  return *address = NULL, 500;
}
