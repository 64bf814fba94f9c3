// Where requests that ended as INTERNAL are reported, so that the id sent to the caller can be found in the
// log.
#pragma once

#include <string_view>

namespace fused_mlp::front {

class FailureLog {
 public:
  virtual void on_failure(std::string_view request_id, std::string_view text) = 0;

 protected:
  ~FailureLog() = default;
};

}  // namespace fused_mlp::front
