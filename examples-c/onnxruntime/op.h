/* The operators of this library, as ONNX Runtime is told about them. */
#ifndef ICE_ONNX_OP_H
#define ICE_ONNX_OP_H

#include "ort.h"

/* One operator for one element type. ONNX Runtime sees the first member. */
typedef struct operator_entry {
  OrtCustomOp base;
  const struct operator_form *form;
  int type; /* ORT_FLOAT or ORT_FLOAT16 */
} operator_entry;

/* What an operator is, whatever the type. In `inputs` and `outputs` a capital letter is required, a small one optional:
 * T the element type, I int32, U any type. */
typedef struct operator_form {
  const char *name, *inputs, *outputs;
  /* Reads the attributes; the result belongs to the caller, who frees it. NULL: see the problem. */
  void *(*create)(const OrtApi *api, const OrtKernelInfo *info, problem *p);
  void (*compute)(const OrtApi *api, const void *kernel, int type, OrtKernelContext *context, problem *p);
} operator_form;

extern const operator_form attention_operator; /* Attention: opset 23 of ONNX */
extern const operator_form gqa_operator;       /* GroupQueryAttention: as in com.microsoft */

#endif
