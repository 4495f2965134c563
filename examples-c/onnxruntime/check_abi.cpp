// Compares ort_abi.h with the real header: compiles, or says which place is wrong.
#include <cstddef>
#include <onnxruntime_c_api.h>

namespace ours {
#define OrtStatus ice_OrtStatus
#define OrtValue ice_OrtValue
#define OrtTypeInfo ice_OrtTypeInfo
#define OrtKernelInfo ice_OrtKernelInfo
#define OrtKernelContext ice_OrtKernelContext
#define OrtSessionOptions ice_OrtSessionOptions
#define OrtApi ice_OrtApi
#define OrtApiBase ice_OrtApiBase
#define OrtCustomOp ice_OrtCustomOp
#include "ort_abi.h"
#undef OrtApi
#undef OrtApiBase
#undef OrtCustomOp
}  // namespace ours

#define PLACE(name) \
  static_assert(offsetof(OrtApi, name) / sizeof(void *) == ours::ORT_##name, "place of " #name " in the table")
PLACE(CreateStatus);
PLACE(CreateCustomOpDomain);
PLACE(CustomOpDomain_Add);
PLACE(AddCustomOpDomain);
PLACE(GetTensorMutableData);
PLACE(GetTensorElementType);
PLACE(GetDimensionsCount);
PLACE(GetDimensions);
PLACE(GetTensorTypeAndShape);
PLACE(KernelInfoGetAttribute_float);
PLACE(KernelInfoGetAttribute_int64);
PLACE(KernelInfoGetAttribute_string);
PLACE(KernelContext_GetInputCount);
PLACE(KernelContext_GetOutputCount);
PLACE(KernelContext_GetInput);
PLACE(KernelContext_GetOutput);
PLACE(ReleaseStatus);
PLACE(ReleaseTensorTypeAndShapeInfo);
PLACE(ReleaseCustomOpDomain);
PLACE(KernelInfo_GetInputCount);
PLACE(KernelInfo_GetOutputCount);
PLACE(KernelInfo_GetInputName);
PLACE(KernelInfo_GetOutputName);
PLACE(KernelContext_ParallelFor);

#define FIELD(name) \
  static_assert(offsetof(OrtCustomOp, name) == offsetof(ours::ice_OrtCustomOp, name), "OrtCustomOp." #name)
FIELD(version);
FIELD(CreateKernel);
FIELD(GetName);
FIELD(GetExecutionProviderType);
FIELD(GetInputType);
FIELD(GetInputTypeCount);
FIELD(GetOutputType);
FIELD(GetOutputTypeCount);
FIELD(KernelCompute);
FIELD(KernelDestroy);
FIELD(GetInputCharacteristic);
FIELD(GetOutputCharacteristic);
FIELD(GetInputMemoryType);
FIELD(GetVariadicInputMinArity);
FIELD(GetVariadicInputHomogeneity);
FIELD(GetVariadicOutputMinArity);
FIELD(GetVariadicOutputHomogeneity);
FIELD(CreateKernelV2);
FIELD(KernelComputeV2);
FIELD(InferOutputShapeFn);
FIELD(GetStartVersion);
FIELD(GetEndVersion);

static_assert(offsetof(OrtApiBase, GetApi) == offsetof(ours::ice_OrtApiBase, GetApi), "GetApi");
static_assert(ORT_FAIL == 1 && ORT_INVALID_ARGUMENT == 2 && ORT_RUNTIME_EXCEPTION == 6 && ORT_NOT_IMPLEMENTED == 9, "codes");
static_assert(int(ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED) == ours::ORT_UNDEFINED, "type");
static_assert(int(ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT) == ours::ORT_FLOAT, "type");
static_assert(int(ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32) == ours::ORT_INT32, "type");
static_assert(int(ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64) == ours::ORT_INT64, "type");
static_assert(int(ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL) == ours::ORT_BOOL, "type");
static_assert(int(ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16) == ours::ORT_FLOAT16, "type");
static_assert(int(INPUT_OUTPUT_REQUIRED) == ours::ORT_REQUIRED && int(INPUT_OUTPUT_OPTIONAL) == ours::ORT_OPTIONAL, "presence");

int main() {}
