#define _POSIX_C_SOURCE 200809L

#include "clock.h"

#ifdef _WIN32

#include <io.h>
#include <windows.h>

double clock_seconds(void) {
  LARGE_INTEGER ticks, second;
  QueryPerformanceCounter(&ticks);
  QueryPerformanceFrequency(&second);
  return (double)ticks.QuadPart / (double)second.QuadPart;
}

bool clock_stderr_is_terminal(void) { return _isatty(2) != 0; }

#else

#include <time.h>
#include <unistd.h>

double clock_seconds(void) {
  struct timespec t = {0, 0};
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

bool clock_stderr_is_terminal(void) { return isatty(STDERR_FILENO) != 0; }

#endif
