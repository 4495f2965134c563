/* Tensors of heads, in the two layouts that models use, and caches of keys and values. */
#ifndef ICE_ONNX_HEADS_H
#define ICE_ONNX_HEADS_H

#include "ort.h"
#include <iceformer.h>

/* [batch, heads, rows, dim] in memory of ONNX Runtime. */
typedef struct heads {
  size_t batch, heads, rows, dim;
  ice_tensor t; /* strides are given */
} heads;

/* Bytes of an element, 0 for types other than float and float16. */
size_t element_size(int type);

/* Reads [batch, heads, rows, dim], or [batch, rows, heads * dim] with the number of heads from an attribute. */
bool view_heads(const tensor *t, const char *name, int64_t count, const char *count_name, heads *out, problem *p);

/* The view of a packed [batch, heads, rows, dim] at `data`. */
heads packed_heads(const void *data, int type, size_t batch, size_t count, size_t rows, size_t dim);

/* Rows from two places, one after the other: past[b][h][0 .. kept[b]], then all of `added`, into `all`, whose data is
 * written and packed. Zeros follow where there is more room. */
typedef struct joined {
  heads past, added, all;
  bool in_place; /* `past` is `all`: only `added` is written */
} joined;

/* Joins keys and values on the threads of the session; kept has a number per batch. */
bool join(const OrtApi *api, const OrtKernelContext *context, const joined *parts, size_t count, const size_t *kept,
          problem *p);

#endif
