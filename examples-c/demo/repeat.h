/* A captured text several times, one after another. */
#ifndef DEMO_REPEAT_H
#define DEMO_REPEAT_H

#include "reference.h"

/* The rows of `heads` packed heads, `copies` times: [heads, copies * rows.rows, rows.cols] in f32, from malloc; `rows` is the
 * first head. NULL when memory is short.
 *
 * With `rope_base` > 0 the rows have a rotary embedding of that base, neighbouring elements turning together, and those of copy c
 * are turned on by c * rows.rows positions: they become what they would be had they stood there at first. 0 leaves them alone. */
float *repeat_rows(ref_rows rows, size_t heads, size_t copies, double rope_base);

#endif
