#define _POSIX_C_SOURCE 200809L

#include "clock.h"

#include <time.h>
#include <unistd.h>

double clock_seconds(void) {
  struct timespec t = {0, 0};
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

bool clock_stderr_is_terminal(void) { return isatty(STDERR_FILENO) != 0; }
