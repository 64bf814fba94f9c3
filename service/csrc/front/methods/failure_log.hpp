// SPDX-License-Identifier: Apache-2.0
// What predictions tell Python: requests that ended as INTERNAL, so that the id sent to the caller can be
// found in the log, and models that have to be loaded.
#pragma once

#include <cstdint>
#include <string_view>

namespace fused_mlp::front {

class FailureLog {
 public:
  // `trace_id`: of the caller's tracing system; may be empty.
  virtual void on_failure(std::string_view request_id, std::string_view trace_id, std::string_view text) = 0;
  // A request waits for this version, which is loaded on demand.
  virtual void on_wanted(std::string_view /*model*/, int64_t /*version*/) {}

 protected:
  ~FailureLog() = default;
};

}  // namespace fused_mlp::front
