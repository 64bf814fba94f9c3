// gRPC status codes, by the numbers of the specification.
#pragma once

namespace fused_mlp::front {

enum Code : int {
  kOk = 0,
  kCancelled = 1,
  kUnknown = 2,
  kInvalidArgument = 3,
  kDeadlineExceeded = 4,
  kResourceExhausted = 8,
  kUnimplemented = 12,
  kInternal = 13,
  kUnavailable = 14,
};
inline constexpr int kHighestCode = 16;

}  // namespace fused_mlp::front
