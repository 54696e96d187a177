/* SPDX-License-Identifier: Apache-2.0 */
/* The one symbol of the library anybit_onnxruntime: the operators of anybit for ONNX Runtime 1.17
   and newer. A session finds them when its options were made with

       OrtApi::RegisterCustomOpsLibrary_V2(options, path of the library)

   or, where the program links the library or looks the symbol up itself, with this function. */
#ifndef ANYBIT_ONNXRUNTIME_H
#define ANYBIT_ONNXRUNTIME_H

#ifdef __cplusplus
extern "C" {
#endif

struct OrtSessionOptions;
struct OrtApiBase;
struct OrtStatus;

/* Adds the operators to session options; doing it again changes nothing. `base` is what
   OrtGetApiBase() of the ONNX Runtime gives that made the options. Null for success, otherwise a
   status that the caller releases. The library stays loaded from then on. */
struct OrtStatus* RegisterCustomOps(struct OrtSessionOptions* options,
                                    const struct OrtApiBase* base);

#ifdef __cplusplus
}
#endif

#endif
