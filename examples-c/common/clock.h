/* The one place that asks the operating system: POSIX or Windows. */
#ifndef EXAMPLES_CLOCK_H
#define EXAMPLES_CLOCK_H

#include <stdbool.h>

/* Seconds on a clock that never goes back. */
double clock_seconds(void);

/* Whether standard error is a terminal, so that progress may be drawn there. */
bool clock_stderr_is_terminal(void);

#endif
