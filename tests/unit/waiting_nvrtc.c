/* An NVRTC 13.0 whose compile waits until proceed() is called, and fails after 20 seconds without.
 */
#include <stddef.h>
#include <string.h>
#include <unistd.h>

static volatile int entered_count, may_proceed;

int entered(void) { return entered_count; }
void proceed(void) { may_proceed = 1; }

const char* nvrtcGetErrorString(int result) { return result ? "nobody called proceed()" : ""; }
int nvrtcVersion(int* major, int* minor) { return *major = 13, *minor = 0, 0; }
int nvrtcGetNumSupportedArchs(int* count) { return *count = 1, 0; }
int nvrtcGetSupportedArchs(int* archs) { return *archs = 90, 0; }
int nvrtcCreateProgram(void** program, const char* text, const char* name, int n,
                       const char* const* headers, const char* const* names) {
  (void)text, (void)name, (void)n, (void)headers, (void)names;
  return *program = (void*)program, 0;
}
int nvrtcDestroyProgram(void** program) { return (void)program, 0; }
int nvrtcCompileProgram(void* program, int n, const char* const* options) {
  (void)program, (void)n, (void)options;
  __sync_fetch_and_add(&entered_count, 1);
  for (int i = 0; i < 20000 && !may_proceed; ++i) usleep(1000);
  return may_proceed ? 0 : 6;
}
int nvrtcGetCUBINSize(void* program, size_t* size) { return (void)program, *size = 3, 0; }
int nvrtcGetCUBIN(void* program, char* image) { return (void)program, memcpy(image, "abc", 3), 0; }
int nvrtcGetPTXSize(void* program, size_t* size) { return (void)program, *size = 0, 0; }
int nvrtcGetPTX(void* program, char* ptx) { return (void)program, (void)ptx, 0; }
int nvrtcGetProgramLogSize(void* program, size_t* size) { return (void)program, *size = 1, 0; }
int nvrtcGetProgramLog(void* program, char* log) { return (void)program, log[0] = 0, 0; }
