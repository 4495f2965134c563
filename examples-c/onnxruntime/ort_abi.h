/* The part of ONNX Runtime's C interface that this library calls, declared here so that no ONNX Runtime package is
 * needed to build it. ONNX Runtime appends to its table of functions and never moves one: a function is its place in the
 * table. Where the real header is at hand, `make check-abi ORT_INCLUDE=folder` compares every place and number. */
#ifndef ICE_ORT_ABI_H
#define ICE_ORT_ABI_H

#include <stddef.h>
#include <stdint.h>

/* First version with everything below: ONNX Runtime 1.17. */
#define ORT_VERSION_NEEDED 17

typedef struct OrtStatus OrtStatus;
typedef struct OrtValue OrtValue;
typedef struct OrtTypeInfo OrtTypeInfo;
typedef struct OrtShape OrtShape;
typedef struct OrtKernelInfo OrtKernelInfo;
typedef struct OrtKernelContext OrtKernelContext;
typedef struct OrtSessionOptions OrtSessionOptions;
typedef struct OrtDomain OrtDomain;

typedef void (*ort_function)(void);

/* Places in the table. Opaque handles of ours stand for those of ONNX Runtime; all are pointers. */
enum {
  ORT_CreateStatus = 0,
  ORT_CreateCustomOpDomain = 26,
  ORT_CustomOpDomain_Add = 27,
  ORT_AddCustomOpDomain = 28,
  ORT_GetTensorMutableData = 51,
  ORT_GetTensorElementType = 60,
  ORT_GetDimensionsCount = 61,
  ORT_GetDimensions = 62,
  ORT_GetTensorTypeAndShape = 65,
  ORT_KernelInfoGetAttribute_float = 85,
  ORT_KernelInfoGetAttribute_int64 = 86,
  ORT_KernelInfoGetAttribute_string = 87,
  ORT_KernelContext_GetInputCount = 88,
  ORT_KernelContext_GetOutputCount = 89,
  ORT_KernelContext_GetInput = 90,
  ORT_KernelContext_GetOutput = 91,
  ORT_ReleaseStatus = 93,
  ORT_ReleaseTensorTypeAndShapeInfo = 99,
  ORT_ReleaseCustomOpDomain = 101,
  ORT_KernelInfo_GetInputCount = 230,
  ORT_KernelInfo_GetOutputCount = 231,
  ORT_KernelInfo_GetInputName = 232,
  ORT_KernelInfo_GetOutputName = 233,
  ORT_KernelContext_ParallelFor = 274,
  ORT_FUNCTIONS = 275
};

typedef struct OrtApi {
  ort_function at[ORT_FUNCTIONS];
} OrtApi;

typedef struct OrtApiBase {
  const OrtApi *(*GetApi)(uint32_t version);
  const char *(*GetVersionString)(void);
} OrtApiBase;

/* Calls the function at a place with the type it has there. */
#define ORT_CALL(api, name, type) ((type)(api)->at[ORT_##name])

/* Status codes. */
enum { ORT_CODE_FAIL = 1, ORT_CODE_INVALID_ARGUMENT = 2, ORT_CODE_RUNTIME_EXCEPTION = 6, ORT_CODE_NOT_IMPLEMENTED = 9 };

/* Element types. */
enum { ORT_UNDEFINED = 0, ORT_FLOAT = 1, ORT_INT32 = 6, ORT_INT64 = 7, ORT_BOOL = 9, ORT_FLOAT16 = 10 };

/* Whether an input or output has to be there. */
enum { ORT_REQUIRED = 0, ORT_OPTIONAL = 1 };

typedef struct OrtCustomOp OrtCustomOp;

struct OrtCustomOp {
  uint32_t version;
  void *(*CreateKernel)(const OrtCustomOp *, const OrtApi *, const OrtKernelInfo *);
  const char *(*GetName)(const OrtCustomOp *);
  const char *(*GetExecutionProviderType)(const OrtCustomOp *);
  int (*GetInputType)(const OrtCustomOp *, size_t);
  size_t (*GetInputTypeCount)(const OrtCustomOp *);
  int (*GetOutputType)(const OrtCustomOp *, size_t);
  size_t (*GetOutputTypeCount)(const OrtCustomOp *);
  void (*KernelCompute)(void *, OrtKernelContext *);
  void (*KernelDestroy)(void *);
  int (*GetInputCharacteristic)(const OrtCustomOp *, size_t);
  int (*GetOutputCharacteristic)(const OrtCustomOp *, size_t);
  int (*GetInputMemoryType)(const OrtCustomOp *, size_t);
  int (*GetVariadicInputMinArity)(const OrtCustomOp *);
  int (*GetVariadicInputHomogeneity)(const OrtCustomOp *);
  int (*GetVariadicOutputMinArity)(const OrtCustomOp *);
  int (*GetVariadicOutputHomogeneity)(const OrtCustomOp *);
  OrtStatus *(*CreateKernelV2)(const OrtCustomOp *, const OrtApi *, const OrtKernelInfo *, void **);
  OrtStatus *(*KernelComputeV2)(void *, OrtKernelContext *);
  OrtStatus *(*InferOutputShapeFn)(const OrtCustomOp *, void *);
  int (*GetStartVersion)(const OrtCustomOp *);
  int (*GetEndVersion)(const OrtCustomOp *);
};

#endif
