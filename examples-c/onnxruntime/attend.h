/* Attention of one node, cut into calls of iceformer and spread over the threads of the session. */
#ifndef ICE_ONNX_ATTEND_H
#define ICE_ONNX_ATTEND_H

#include "mask.h"
#include <iceformer.h>

/* What the attributes of a node say. */
typedef struct settings {
  ice_mode mode;
  float tolerance, scale, softcap; /* 0: the library's default, or off */
  uint64_t window;                 /* keys a row sees up to its own position; 0: all */
} settings;

/* One attention problem. All strides are given. Batch b has lengths[b] keys, and its row 0 stands at positions[b]. */
typedef struct attention {
  size_t batch, heads_q, heads_kv, dim_k, dim_v, rows;
  const size_t *lengths, *positions;
  ice_tensor q, k, v;
  ice_tensor_mut out;
  bool causal;
  mask_view mask; /* all lengths are equal if there is one */
  settings settings;
} attention;

/* Reads tolerance, mode, scale and softcap, and checks them. */
bool read_settings(const OrtApi *api, const OrtKernelInfo *info, settings *out, problem *p);

/* Computes the problem. Rows that see no key become zero. */
bool attend(const OrtApi *api, const OrtKernelContext *context, const attention *a, problem *p);

#endif
