#include "ort.h"
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

typedef OrtStatus *(*create_status)(int, const char *);
typedef void (*release)(void *);
typedef OrtStatus *(*context_count)(const OrtKernelContext *, size_t *);
typedef OrtStatus *(*get_input)(const OrtKernelContext *, size_t, const OrtValue **);
typedef OrtStatus *(*get_output)(OrtKernelContext *, size_t, const int64_t *, size_t, OrtValue **);
typedef OrtStatus *(*get_data)(const OrtValue *, void **);
typedef OrtStatus *(*get_shape)(const OrtValue *, OrtShape **);
typedef OrtStatus *(*shape_type)(const OrtShape *, int *);
typedef OrtStatus *(*shape_count)(const OrtShape *, size_t *);
typedef OrtStatus *(*shape_dims)(const OrtShape *, int64_t *, size_t);
typedef OrtStatus *(*get_float)(const OrtKernelInfo *, const char *, float *);
typedef OrtStatus *(*get_int64)(const OrtKernelInfo *, const char *, int64_t *);
typedef OrtStatus *(*get_string)(const OrtKernelInfo *, const char *, char *, size_t *);
typedef OrtStatus *(*info_count)(const OrtKernelInfo *, size_t *);
typedef OrtStatus *(*info_name)(const OrtKernelInfo *, size_t, char *, size_t *);
typedef OrtStatus *(*parallel_for)(const OrtKernelContext *, void (*)(void *, size_t), size_t, size_t, void *);

bool fail(problem *p, int code, const char *format, ...) {
  if (p->code == 0) {
    va_list values;
    va_start(values, format);
    vsnprintf(p->text, sizeof p->text, format, values);
    va_end(values);
    p->code = code;
  }
  return false;
}

OrtStatus *to_status(const OrtApi *api, const char *op, const problem *p) {
  if (p->code == 0) return NULL;
  char line[sizeof p->text + 64];
  snprintf(line, sizeof line, "iceformer.%s: %s", op, p->text);
  return ORT_CALL(api, CreateStatus, create_status)(p->code, line);
}

bool succeeded(const OrtApi *api, OrtStatus *status) {
  if (!status) return true;
  ORT_CALL(api, ReleaseStatus, release)(status);
  return false;
}

bool read_input(const OrtApi *api, OrtKernelContext *context, size_t index, const char *name, tensor *out, problem *p) {
  memset(out, 0, sizeof *out);
  size_t count = 0;
  const OrtValue *value = NULL;
  OrtShape *shape = NULL;
  if (!succeeded(api, ORT_CALL(api, KernelContext_GetInputCount, context_count)(context, &count)) || index >= count)
    return true;
  if (!succeeded(api, ORT_CALL(api, KernelContext_GetInput, get_input)(context, index, &value)))
    return fail(p, ORT_CODE_FAIL, "%s: ONNX Runtime does not hand it over", name);
  if (!value) return true;
  if (!succeeded(api, ORT_CALL(api, GetTensorTypeAndShape, get_shape)(value, &shape)))
    return fail(p, ORT_CODE_INVALID_ARGUMENT, "%s: is not a tensor", name);
  bool ok = succeeded(api, ORT_CALL(api, GetTensorElementType, shape_type)(shape, &out->type)) &&
            succeeded(api, ORT_CALL(api, GetDimensionsCount, shape_count)(shape, &out->rank));
  if (ok && out->rank > MAX_RANK) {
    ok = fail(p, ORT_CODE_INVALID_ARGUMENT, "%s: has %zu dimensions", name, out->rank);
  } else if (ok && out->rank > 0) {
    ok = succeeded(api, ORT_CALL(api, GetDimensions, shape_dims)(shape, out->dims, out->rank));
  }
  ORT_CALL(api, ReleaseTensorTypeAndShapeInfo, release)(shape);
  ok = ok && succeeded(api, ORT_CALL(api, GetTensorMutableData, get_data)(value, &out->data));
  out->present = ok;
  return ok || fail(p, ORT_CODE_FAIL, "%s: ONNX Runtime does not hand over its data", name);
}

bool make_output(const OrtApi *api, OrtKernelContext *context, size_t index, const int64_t *dims, size_t rank,
                 void **data, problem *p) {
  *data = NULL;
  size_t count = 0;
  OrtValue *value = NULL;
  if (!succeeded(api, ORT_CALL(api, KernelContext_GetOutputCount, context_count)(context, &count)) || index >= count)
    return true;
  if (!succeeded(api, ORT_CALL(api, KernelContext_GetOutput, get_output)(context, index, dims, rank, &value)))
    return fail(p, ORT_CODE_FAIL, "output %zu: ONNX Runtime could not make it", index);
  if (!value) return true;
  if (!succeeded(api, ORT_CALL(api, GetTensorMutableData, get_data)(value, data)))
    return fail(p, ORT_CODE_FAIL, "output %zu: ONNX Runtime does not hand over its data", index);
  return true;
}

shape_text describe(const tensor *t) {
  shape_text s = {"["};
  size_t used = 1;
  for (size_t i = 0; i < t->rank && used < sizeof s.text - 24; i++)
    used += (size_t)snprintf(s.text + used, sizeof s.text - used, "%s%" PRId64, i ? ", " : "", t->dims[i]);
  snprintf(s.text + used, sizeof s.text - used, "]");
  return s;
}

float attribute_float(const OrtApi *api, const OrtKernelInfo *info, const char *name, float otherwise) {
  float value = 0;
  if (succeeded(api, ORT_CALL(api, KernelInfoGetAttribute_float, get_float)(info, name, &value))) return value;
  int64_t whole = 0;
  if (succeeded(api, ORT_CALL(api, KernelInfoGetAttribute_int64, get_int64)(info, name, &whole))) return (float)whole;
  return otherwise;
}

int64_t attribute_int(const OrtApi *api, const OrtKernelInfo *info, const char *name, int64_t otherwise) {
  int64_t value = 0;
  return succeeded(api, ORT_CALL(api, KernelInfoGetAttribute_int64, get_int64)(info, name, &value)) ? value : otherwise;
}

bool attribute_string(const OrtApi *api, const OrtKernelInfo *info, const char *name, char *out, size_t size) {
  return succeeded(api, ORT_CALL(api, KernelInfoGetAttribute_string, get_string)(info, name, out, &size));
}

static bool connected(const OrtApi *api, const OrtKernelInfo *info, size_t index, info_count count, info_name name) {
  size_t n = 0, size = 0;
  if (!succeeded(api, count(info, &n)) || index >= n) return false;
  /* Asked for the size alone: an empty name has one byte, the NUL. */
  if (!succeeded(api, name(info, index, NULL, &size))) return true;
  return size > 1;
}

bool node_has_input(const OrtApi *api, const OrtKernelInfo *info, size_t index) {
  return connected(api, info, index, ORT_CALL(api, KernelInfo_GetInputCount, info_count),
                   ORT_CALL(api, KernelInfo_GetInputName, info_name));
}

bool node_has_output(const OrtApi *api, const OrtKernelInfo *info, size_t index) {
  return connected(api, info, index, ORT_CALL(api, KernelInfo_GetOutputCount, info_count),
                   ORT_CALL(api, KernelInfo_GetOutputName, info_name));
}

bool in_parallel(const OrtApi *api, const OrtKernelContext *context, void (*task)(void *, size_t), size_t total,
                 void *user, problem *p) {
  if (total <= 1) {
    if (total) task(user, 0);
    return true;
  }
  if (!succeeded(api, ORT_CALL(api, KernelContext_ParallelFor, parallel_for)(context, task, total, 0, user)))
    return fail(p, ORT_CODE_FAIL, "ONNX Runtime's threads refuse work");
  return true;
}
