// A trace of real traffic: who spent which time on which request. Off unless somebody asked for it, and then
// one relaxed load per batch and per decode. On, every thread writes to a bounded buffer of its own; what
// finds no room is counted. One trace at a time for the process, whatever the number of engines.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "engine/clock.hpp"

namespace fused_mlp {

enum class TracePhase : std::uint8_t {
  decode,   // the message, its checks, its route; on the front's thread
  queue,    // from arrival until a batch was formed; no thread's time
  gather,   // into the batch
  kernel,   // the batch; belongs to no single request
  scatter,  // out of the batch, up to the front
  encode,   // the answer; inside scatter where the thread that ran the batch does it
};
const char* name_of(TracePhase phase) noexcept;

struct TraceSpan {
  TracePhase phase;
  std::uint32_t thread = 0;  // as the operating system numbers it; filled in when it is recorded
  std::uint32_t rows = 0;
  std::uint64_t request = 0;  // 0: of the whole batch
  Nanos start = 0;
  Nanos end = 0;
  char lane[40] = {};  // cut, so that a span owns no memory
};

struct Trace {
  std::vector<TraceSpan> spans;
  std::map<std::uint32_t, std::string> threads;  // names
  std::size_t dropped = 0;
};

namespace detail {
inline std::atomic<bool> tracing{false};
}
inline bool tracing() noexcept { return detail::tracing.load(std::memory_order_relaxed); }

// False: one is being taken already.
bool start_trace(std::size_t spans_per_thread);
Trace stop_trace();

// A number for a request, never 0.
std::uint64_t next_trace_id() noexcept;
void record_span(TracePhase phase, std::uint64_t request, std::uint32_t rows, Nanos start, Nanos end,
                 std::string_view lane) noexcept;

}  // namespace fused_mlp
