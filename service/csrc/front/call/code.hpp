// SPDX-License-Identifier: Apache-2.0
// The gRPC status codes that the front itself sends, by the numbers of the specification.
#pragma once

namespace fused_mlp::front {

enum Code : int {
  kOk = 0,
  kCancelled = 1,
  kInvalidArgument = 3,
  kDeadlineExceeded = 4,
  kNotFound = 5,
  kPermissionDenied = 7,
  kResourceExhausted = 8,
  kUnimplemented = 12,
  kInternal = 13,
  kUnavailable = 14,
  kUnauthenticated = 16,
};

}  // namespace fused_mlp::front
