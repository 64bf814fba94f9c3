// SPDX-License-Identifier: Apache-2.0
// The results of the driver's functions that the fake returns, and what they are called.
#pragma once

namespace fake_cuda {

enum Result {
  kSuccess = 0,
  kInvalidValue = 1,
  kOutOfMemory = 2,
  kNotInitialized = 3,
  kInvalidDevice = 101,
  kInvalidImage = 200,
  kInvalidContext = 201,
  kNoBinaryForGpu = 209,
  kInvalidHandle = 400,
  kNotFound = 500,
  kNotReady = 600,
  kIllegalAddress = 700,
  kLaunchOutOfResources = 701,
  kLaunchFailed = 719,
  kCaptureUnsupported = 900,
  kCaptureInvalidated = 901,
};

// Null: not one of them.
const char* name_of(int code);
const char* text_of(int code);

}  // namespace fake_cuda
