// SPDX-License-Identifier: Apache-2.0
// A trace of live traffic: when each thread worked on which request. While off it costs one relaxed load per
// batch and per decode. While on, each thread writes to a bounded buffer of its own; spans that do not fit
// are counted. A process has at most one trace at a time, whatever the number of engines.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "engine/clock.hpp"
#include "engine/telemetry/trace_context.hpp"

namespace fused_mlp {

enum class TracePhase : std::uint8_t {
  decode,   // decoding, validation and routing, on the front's thread
  queue,    // from arrival until the batch was formed; uses no thread
  gather,   // copying the rows into the batch
  kernel,   // the kernel call of the whole batch
  scatter,  // handing the result to the front
  encode,   // encoding the response; part of scatter if the thread that ran the batch encodes it
};
const char* name_of(TracePhase phase) noexcept;

struct TraceSpan {
  TracePhase phase;
  std::uint32_t thread = 0;  // the operating system's thread id; set by record_span
  std::uint32_t rows = 0;
  std::uint64_t request = 0;  // 0: the whole batch
  Nanos start = 0;
  Nanos end = 0;
  TraceContext caller;  // in the request's first span
  char lane[40] = {};   // truncated, so that a span owns no memory
};

struct Trace {
  std::vector<TraceSpan> spans;
  std::map<std::uint32_t, std::string> threads;  // names by thread id
  std::size_t dropped = 0;
};

namespace detail {
extern std::atomic<bool> tracing;  // defined in process_state.cpp
}
inline bool tracing() noexcept { return detail::tracing.load(std::memory_order_relaxed); }

// False if a trace is running already.
bool start_trace(std::size_t spans_per_thread);
Trace stop_trace();

// A new id for a request, never 0.
std::uint64_t next_trace_id() noexcept;
void record_span(TracePhase phase, std::uint64_t request, std::uint32_t rows, Nanos start, Nanos end,
                 std::string_view lane, const TraceContext& caller = {}) noexcept;

}  // namespace fused_mlp
