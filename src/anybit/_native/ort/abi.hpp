// SPDX-License-Identifier: Apache-2.0
// The part of ONNX Runtime's C ABI that a custom-operator library needs, under its own names. No
// package carries ONNX Runtime's headers, but the ABI is append-only: OrtApi is a table of function
// pointers whose slots never move, OrtCustomOp a struct that only grows at its end. All of it is
// the platform's default calling convention (32-bit Windows, the exception, is not supported).
#pragma once

#include <cstddef>
#include <cstdint>

namespace anybit::ort {

// Handles: only ever seen through pointers.
struct OrtCustomOpDomain;
struct OrtKernelContext;
struct OrtKernelInfo;
struct OrtOpAttr;
struct OrtSessionOptions;
struct OrtShapeInferContext;
struct OrtStatus;
struct OrtTensorTypeAndShapeInfo;
struct OrtTypeInfo;
struct OrtValue;

// Element types of tensors; the numbers are those of ONNX's TensorProto.
enum class OrtElementType : std::int32_t {
  undefined = 0,  // as declared type of an input: any type
  float32 = 1,
  uint8 = 2,
  int8 = 3,
  uint16 = 4,
  int16 = 5,
  int32 = 6,
  int64 = 7,
  string = 8,
  boolean = 9,
  float16 = 10,
  float64 = 11,
  uint32 = 12,
  uint64 = 13,
  bfloat16 = 16,
};

enum class OrtErrorCode : std::int32_t { fail = 1, invalid_argument = 2 };
enum class OrtAttributeType : std::int32_t { integer = 1, string = 5 };
enum class OrtCharacteristic : std::int32_t { required = 0, optional = 1, variadic = 2 };
enum class OrtMemoryType : std::int32_t { device = 0 };

// Slots of OrtApi that nothing here calls.
template <std::size_t first, std::size_t last>
using Unused = void * [last - first + 1];

// A status is null for success; the receiver releases it.
struct OrtApi {
  OrtStatus* (*CreateStatus)(OrtErrorCode code, const char* message);
  Unused<1, 1> slot_1;
  const char* (*GetErrorMessage)(const OrtStatus* status);
  Unused<3, 25> slots_3_to_25;
  OrtStatus* (*CreateCustomOpDomain)(const char* domain, OrtCustomOpDomain** out);
  OrtStatus* (*CustomOpDomain_Add)(OrtCustomOpDomain* domain, const struct OrtCustomOp* op);
  OrtStatus* (*AddCustomOpDomain)(OrtSessionOptions* options, OrtCustomOpDomain* domain);
  Unused<29, 50> slots_29_to_50;
  OrtStatus* (*GetTensorMutableData)(OrtValue* value, void** out);
  Unused<52, 54> slots_52_to_54;
  OrtStatus* (*CastTypeInfoToTensorInfo)(const OrtTypeInfo* info,
                                         const OrtTensorTypeAndShapeInfo** out);
  Unused<56, 57> slots_56_to_57;
  OrtStatus* (*SetTensorElementType)(OrtTensorTypeAndShapeInfo* info, OrtElementType type);
  Unused<59, 59> slot_59;
  OrtStatus* (*GetTensorElementType)(const OrtTensorTypeAndShapeInfo* info, OrtElementType* out);
  OrtStatus* (*GetDimensionsCount)(const OrtTensorTypeAndShapeInfo* info, std::size_t* out);
  OrtStatus* (*GetDimensions)(const OrtTensorTypeAndShapeInfo* info, std::int64_t* sizes,
                              std::size_t count);
  OrtStatus* (*GetSymbolicDimensions)(const OrtTensorTypeAndShapeInfo* info, const char** names,
                                      std::size_t count);
  Unused<64, 64> slot_64;
  OrtStatus* (*GetTensorTypeAndShape)(const OrtValue* value, OrtTensorTypeAndShapeInfo** out);
  Unused<66, 84> slots_66_to_84;
  OrtStatus* (*KernelInfoGetAttribute_float)(const OrtKernelInfo* info, const char* name,
                                             float* out);
  OrtStatus* (*KernelInfoGetAttribute_int64)(const OrtKernelInfo* info, const char* name,
                                             std::int64_t* out);
  OrtStatus* (*KernelInfoGetAttribute_string)(const OrtKernelInfo* info, const char* name,
                                              char* out, std::size_t* size);
  Unused<88, 89> slots_88_to_89;
  OrtStatus* (*KernelContext_GetInput)(const OrtKernelContext* context, std::size_t index,
                                       const OrtValue** out);
  OrtStatus* (*KernelContext_GetOutput)(OrtKernelContext* context, std::size_t index,
                                        const std::int64_t* sizes, std::size_t rank,
                                        OrtValue** out);
  Unused<92, 92> slot_92;
  void (*ReleaseStatus)(OrtStatus* status);
  Unused<94, 97> slots_94_to_97;
  void (*ReleaseTypeInfo)(OrtTypeInfo* info);
  void (*ReleaseTensorTypeAndShapeInfo)(OrtTensorTypeAndShapeInfo* info);
  Unused<100, 100> slot_100;
  void (*ReleaseCustomOpDomain)(OrtCustomOpDomain* domain);
  Unused<102, 129> slots_102_to_129;
  OrtStatus* (*AddSessionConfigEntry)(OrtSessionOptions* options, const char* key,
                                      const char* value);
  Unused<131, 229> slots_131_to_229;
  OrtStatus* (*KernelInfo_GetInputCount)(const OrtKernelInfo* info, std::size_t* out);
  OrtStatus* (*KernelInfo_GetOutputCount)(const OrtKernelInfo* info, std::size_t* out);
  Unused<232, 232> slot_232;
  OrtStatus* (*KernelInfo_GetOutputName)(const OrtKernelInfo* info, std::size_t index, char* out,
                                         std::size_t* size);
  OrtStatus* (*KernelInfo_GetInputTypeInfo)(const OrtKernelInfo* info, std::size_t index,
                                            OrtTypeInfo** out);
  OrtStatus* (*KernelInfo_GetOutputTypeInfo)(const OrtKernelInfo* info, std::size_t index,
                                             OrtTypeInfo** out);
  Unused<236, 236> slot_236;
  OrtStatus* (*HasSessionConfigEntry)(const OrtSessionOptions* options, const char* key, int* out);
  Unused<238, 243> slots_238_to_243;
  OrtStatus* (*KernelInfo_GetNodeName)(const OrtKernelInfo* info, char* out, std::size_t* size);
  Unused<245, 248> slots_245_to_248;
  OrtStatus* (*KernelInfoGetConstantInput_tensor)(const OrtKernelInfo* info, std::size_t index,
                                                  int* is_constant, const OrtValue** out);
  Unused<250, 267> slots_250_to_267;
  OrtStatus* (*ShapeInferContext_GetInputTypeShape)(const OrtShapeInferContext* context,
                                                    std::size_t index,
                                                    OrtTensorTypeAndShapeInfo** out);
  OrtStatus* (*ShapeInferContext_GetAttribute)(const OrtShapeInferContext* context,
                                               const char* name, const OrtOpAttr** out);
  OrtStatus* (*ShapeInferContext_SetOutputTypeShape)(const OrtShapeInferContext* context,
                                                     std::size_t index,
                                                     const OrtTensorTypeAndShapeInfo* info);
  OrtStatus* (*SetSymbolicDimensions)(OrtTensorTypeAndShapeInfo* info, const char** names,
                                      std::size_t count);
  OrtStatus* (*ReadOpAttr)(const OrtOpAttr* attribute, OrtAttributeType type, void* data,
                           std::size_t size, std::size_t* out);
  Unused<273, 273> slot_273;
  OrtStatus* (*KernelContext_ParallelFor)(const OrtKernelContext* context,
                                          void (*work)(void* data, std::size_t index),
                                          std::size_t total, std::size_t batches, void* data);
};

// The newest slot above appeared in ONNX Runtime 1.17.
inline constexpr std::uint32_t oldest_api = 17;

inline constexpr std::size_t slot = sizeof(void*);
static_assert(offsetof(OrtApi, GetErrorMessage) == 2 * slot);
static_assert(offsetof(OrtApi, CreateCustomOpDomain) == 26 * slot);
static_assert(offsetof(OrtApi, GetTensorMutableData) == 51 * slot);
static_assert(offsetof(OrtApi, CastTypeInfoToTensorInfo) == 55 * slot);
static_assert(offsetof(OrtApi, SetTensorElementType) == 58 * slot);
static_assert(offsetof(OrtApi, GetTensorElementType) == 60 * slot);
static_assert(offsetof(OrtApi, GetTensorTypeAndShape) == 65 * slot);
static_assert(offsetof(OrtApi, KernelInfoGetAttribute_float) == 85 * slot);
static_assert(offsetof(OrtApi, KernelContext_GetInput) == 90 * slot);
static_assert(offsetof(OrtApi, ReleaseStatus) == 93 * slot);
static_assert(offsetof(OrtApi, ReleaseTypeInfo) == 98 * slot);
static_assert(offsetof(OrtApi, ReleaseCustomOpDomain) == 101 * slot);
static_assert(offsetof(OrtApi, AddSessionConfigEntry) == 130 * slot);
static_assert(offsetof(OrtApi, KernelInfo_GetInputCount) == 230 * slot);
static_assert(offsetof(OrtApi, KernelInfo_GetOutputCount) == 231 * slot);
static_assert(offsetof(OrtApi, KernelInfo_GetOutputName) == 233 * slot);
static_assert(offsetof(OrtApi, HasSessionConfigEntry) == 237 * slot);
static_assert(offsetof(OrtApi, KernelInfo_GetNodeName) == 244 * slot);
static_assert(offsetof(OrtApi, KernelInfoGetConstantInput_tensor) == 249 * slot);
static_assert(offsetof(OrtApi, ShapeInferContext_GetInputTypeShape) == 268 * slot);
static_assert(offsetof(OrtApi, ReadOpAttr) == 272 * slot);
static_assert(offsetof(OrtApi, KernelContext_ParallelFor) == 274 * slot);

// Argument of RegisterCustomOps. GetApi returns null for a version that the host lacks.
struct OrtApiBase {
  const OrtApi* (*GetApi)(std::uint32_t version);
  const char* (*GetVersionString)();
};

// An operator for one combination of input types. The host reads the members up to those of
// `version`, which must not exceed its own. Null members are missing features.
struct OrtCustomOp {
  std::uint32_t version;
  void* (*CreateKernel)(const OrtCustomOp*, const OrtApi*, const OrtKernelInfo*);
  const char* (*GetName)(const OrtCustomOp*);
  const char* (*GetExecutionProviderType)(const OrtCustomOp*);
  OrtElementType (*GetInputType)(const OrtCustomOp*, std::size_t);
  std::size_t (*GetInputTypeCount)(const OrtCustomOp*);
  OrtElementType (*GetOutputType)(const OrtCustomOp*, std::size_t);
  std::size_t (*GetOutputTypeCount)(const OrtCustomOp*);
  void (*KernelCompute)(void*, OrtKernelContext*);  // null: the variant with a status is used
  void (*KernelDestroy)(void*);
  // Version 8
  OrtCharacteristic (*GetInputCharacteristic)(const OrtCustomOp*, std::size_t);
  OrtCharacteristic (*GetOutputCharacteristic)(const OrtCustomOp*, std::size_t);
  // Version 13
  OrtMemoryType (*GetInputMemoryType)(const OrtCustomOp*, std::size_t);
  // Version 14
  int (*GetVariadicInputMinArity)(const OrtCustomOp*);
  int (*GetVariadicInputHomogeneity)(const OrtCustomOp*);
  int (*GetVariadicOutputMinArity)(const OrtCustomOp*);
  int (*GetVariadicOutputHomogeneity)(const OrtCustomOp*);
  // Version 16
  OrtStatus* (*CreateKernelV2)(const OrtCustomOp*, const OrtApi*, const OrtKernelInfo*, void**);
  OrtStatus* (*KernelComputeV2)(void*, OrtKernelContext*);
  // Version 17. The host ignores, and does not release, what InferOutputShapeFn returns.
  OrtStatus* (*InferOutputShapeFn)(const OrtCustomOp*, OrtShapeInferContext*);
  int (*GetStartVersion)(const OrtCustomOp*);
  int (*GetEndVersion)(const OrtCustomOp*);
  // Version 18. Pairs of an input and an output that may share memory.
  std::size_t (*GetMayInplace)(int** inputs, int** outputs);
  void (*ReleaseMayInplace)(int* inputs, int* outputs);
  std::size_t (*GetAliasMap)(int** inputs, int** outputs);
  void (*ReleaseAliasMap)(int* inputs, int* outputs);
};
static_assert(offsetof(OrtCustomOp, CreateKernel) == slot);
static_assert(sizeof(OrtCustomOp) == 26 * slot);

}  // namespace anybit::ort
