// SPDX-License-Identifier: Apache-2.0
// The trace that a request belongs to, from the header `traceparent` of W3C Trace Context.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace fused_mlp {

struct TraceContext {
  std::uint64_t trace_high = 0, trace_low = 0;  // the trace's id; both 0: there is no context
  std::uint64_t span = 0;                       // of the caller
  bool sampled = false;

  bool present() const noexcept { return (trace_high | trace_low) != 0; }
};

// Without a context for a header that the specification does not allow: such a header is ignored.
TraceContext parse_traceparent(std::string_view header) noexcept;
std::string trace_hex(const TraceContext& context);  // 32 digits
std::string span_hex(std::uint64_t span);            // 16 digits

}  // namespace fused_mlp
