/* Command line of the demo. */
#ifndef DEMO_OPTIONS_H
#define DEMO_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

typedef struct options {
  const char *path;
  uint64_t rows; /* 0: all */
  uint64_t repeat; /* copies of the text; 0: not said */
  double rope_base; /* 0: what the file says */
  bool top_k; /* also by top-k */
  uint32_t keys; /* that top-k keeps; 0: the library's rule */
  uint32_t threads;
  float tolerance;
  const char *isa; /* NULL: the best of this machine */
  const char *svg; /* NULL: no drawing */
} options;

typedef enum options_result { OPTIONS_RUN, OPTIONS_HELP, OPTIONS_WRONG } options_result;

/* On OPTIONS_WRONG one line has gone to standard error; on OPTIONS_HELP the help has gone to standard output. */
options_result options_parse(options *o, int argc, char **argv);

#endif
