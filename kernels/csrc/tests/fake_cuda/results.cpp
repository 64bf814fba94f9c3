// SPDX-License-Identifier: Apache-2.0
#include "results.hpp"

#include <map>
#include <utility>

namespace fake_cuda {

namespace {

const std::map<int, std::pair<const char*, const char*>> kTexts = {
    {kSuccess, {"CUDA_SUCCESS", "no error"}},
    {kInvalidValue, {"CUDA_ERROR_INVALID_VALUE", "invalid argument"}},
    {kOutOfMemory, {"CUDA_ERROR_OUT_OF_MEMORY", "out of memory"}},
    {kNotInitialized, {"CUDA_ERROR_NOT_INITIALIZED", "initialization error"}},
    {kInvalidDevice, {"CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"}},
    {kInvalidImage, {"CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"}},
    {kInvalidContext, {"CUDA_ERROR_INVALID_CONTEXT", "invalid device context"}},
    {kNoBinaryForGpu,
     {"CUDA_ERROR_NO_BINARY_FOR_GPU", "no kernel image is available for execution on the device"}},
    {kInvalidHandle, {"CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"}},
    {kNotFound, {"CUDA_ERROR_NOT_FOUND", "named symbol not found"}},
    {kNotReady, {"CUDA_ERROR_NOT_READY", "device not ready"}},
    {kIllegalAddress, {"CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"}},
    {kLaunchOutOfResources,
     {"CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "too many resources requested for launch"}},
    {kLaunchFailed, {"CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"}},
    {kCaptureUnsupported,
     {"CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "operation not permitted when stream is capturing"}},
    {kCaptureInvalidated,
     {"CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", "operation failed due to a previous error during capture"}},
};

}  // namespace

const char* name_of(int code) {
  const auto found = kTexts.find(code);
  return found == kTexts.end() ? nullptr : found->second.first;
}

const char* text_of(int code) {
  const auto found = kTexts.find(code);
  return found == kTexts.end() ? nullptr : found->second.second;
}

}  // namespace fake_cuda
