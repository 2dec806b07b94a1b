/* A CPU kernel that waits until its input is no longer 0, and gives what it found after 20 seconds
 * at most. Arguments: pointers to one int each.
 */
#include <stdint.h>
#include <unistd.h>

static volatile int entered_count;

int entered(void) { return entered_count; }

void wait_for_input(const int64_t* args, int64_t begin, int64_t end, void* scratch) {
  volatile int32_t* input = (int32_t*)args[0];
  (void)begin, (void)end, (void)scratch;
  entered_count += 1;
  for (int i = 0; i < 20000 && !*input; ++i) usleep(1000);
  *(int32_t*)args[1] = *input;
}
