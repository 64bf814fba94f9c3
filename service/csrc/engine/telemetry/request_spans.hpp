// SPDX-License-Identifier: Apache-2.0
// Requests that are sampled for a tracing system (OpenTelemetry). A front asks whether a request is sampled
// when it arrives, fills in its span, and hands it over at its end; Python takes the spans and exports them.
// Bounded: spans that find no room are counted and lost, those of the address that holds most first; a caller
// whose every request is sampled loses its own. While off it costs one relaxed load per request.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/clock.hpp"
#include "engine/telemetry/trace_context.hpp"
#include "engine/ticket.hpp"

namespace fused_mlp {

// Times are of the engine's clock.
struct RequestSpan {
  TraceContext parent;  // of the caller; without one, a new trace id and no span
  std::uint64_t id = 0;
  std::string rpc;    // package.Service/Method, or the verb and the route of REST
  std::string path;   // REST: as it was asked for, cut
  std::string lane;   // model, version and variant; empty: it reached no lane
  std::string model;  // where there is no lane: the name that was asked for, cut
  std::string strategy;
  Nanos start = 0, end = 0;
  Nanos batch_start = 0, batch_end = 0;  // 0: it was in no batch
  Nanos compute_start = 0, compute_end = 0;
  std::uint64_t batch = 0;  // the same for all requests of a batch
  std::uint32_t rows = 0, batch_rows = 0;
  int code = 0;
  std::uint64_t address = 0;  // of the peer: any number that tells peers apart

  // Adds the outcome that the engine reported at `now`.
  void add(const Outcome& outcome, Nanos now);
  // For what is below it.
  TraceContext own() const noexcept { return {parent.trace_high, parent.trace_low, id, true}; }
};

// Which requests are sampled, as OTEL_TRACES_SAMPLER says.
struct Sampling {
  double ratio = 1;             // of those that nothing else decides
  bool parents_decide = true;   // a caller's own decision is followed
  std::size_t capacity = 2048;  // spans that wait to be taken
};

namespace detail {
extern std::atomic<bool> sampling;  // defined in process_state.cpp
}
inline bool sampling() noexcept { return detail::sampling.load(std::memory_order_relaxed); }

void start_sampling(const Sampling& rules);
void stop_sampling();

// Null unless it is sampled (or for lack of memory).
std::unique_ptr<RequestSpan> sample_request(const TraceContext& caller, std::string_view rpc, Nanos start,
                                            std::uint64_t address = 0) noexcept;
void finish_request(std::unique_ptr<RequestSpan> span) noexcept;

std::vector<RequestSpan> take_request_spans();
std::uint64_t dropped_request_spans();  // since the start of the process

}  // namespace fused_mlp
