/* What the operators need of ONNX Runtime, one step above its table of functions: tensors as a pointer, a type and
 * dimensions; attributes with defaults; errors as text. Nothing here knows about attention. */
#ifndef ICE_ORT_H
#define ICE_ORT_H

#include "ort_abi.h"
#include <stdbool.h>

enum { MAX_RANK = 8 };

/* First thing that went wrong: a status code of ONNX Runtime, 0 if none, and one line of text. */
typedef struct problem {
  int code;
  char text[400];
} problem;

/* Sets the problem unless there is one; returns false, so that checks can end with it. */
bool fail(problem *p, int code, const char *format, ...)
#if defined(__GNUC__)
    __attribute__((format(printf, 3, 4)))
#endif
    ;

/* NULL where there is no problem, else a status with "iceformer.<op>: <text>" that belongs to ONNX Runtime. */
OrtStatus *to_status(const OrtApi *api, const char *op, const problem *p);

/* Frees a status; true if it was NULL, which means success. */
bool succeeded(const OrtApi *api, OrtStatus *status);

/* A tensor that ONNX Runtime owns. `data` is NULL for an optional one that is not there (`present` is false), and may be
 * for an empty one. */
typedef struct tensor {
  void *data;
  int type;
  bool present;
  size_t rank;
  int64_t dims[MAX_RANK];
} tensor;

/* Input `index`; one beyond the node's or left out is not present. */
bool read_input(const OrtApi *api, OrtKernelContext *context, size_t index, const char *name, tensor *out, problem *p);

/* Makes output `index` of this shape; `*data` is NULL where the node does not ask for it. */
bool make_output(const OrtApi *api, OrtKernelContext *context, size_t index, const int64_t *dims, size_t rank,
                 void **data, problem *p);

/* "[1, 2, 3]" for messages. */
typedef struct shape_text {
  char text[120];
} shape_text;
shape_text describe(const tensor *t);

/* Attributes. A float may be given as an integer. */
float attribute_float(const OrtApi *api, const OrtKernelInfo *info, const char *name, float otherwise);
int64_t attribute_int(const OrtApi *api, const OrtKernelInfo *info, const char *name, int64_t otherwise);
/* False if there is no such string or it is longer than `size - 1`. */
bool attribute_string(const OrtApi *api, const OrtKernelInfo *info, const char *name, char *out, size_t size);

/* Whether the node connects something to this input or output. */
bool node_has_input(const OrtApi *api, const OrtKernelInfo *info, size_t index);
bool node_has_output(const OrtApi *api, const OrtKernelInfo *info, size_t index);

/* Runs task(user, 0 .. total) on the threads of the session, the caller's among them. */
bool in_parallel(const OrtApi *api, const OrtKernelContext *context, void (*task)(void *, size_t), size_t total,
                 void *user, problem *p);

#endif
