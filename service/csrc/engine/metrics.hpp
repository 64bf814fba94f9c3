// The counters of the engine and the fronts: relaxed atomics, read by the collector at scrape time.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>

#include "engine/histogram.hpp"
#include "engine/per_thread.hpp"
#include "engine/status.hpp"

namespace fused_mlp {

// Why a batch was formed when it was.
enum class Release : std::uint8_t {
  full,  // max_batch_rows were queued
  idle,  // a thread was free and the lane has no max_wait_us
  wait,  // max_wait_us had passed since the first arrival, or a ticket's deadline was before that
};
inline constexpr std::array kReleaseNames = {"full", "idle", "wait"};
inline constexpr int kReleaseCount = static_cast<int>(kReleaseNames.size());
inline const char* release_name(Release release) noexcept {
  return kReleaseNames[static_cast<std::size_t>(release)];
}

// Requests by gRPC code, and their durations. The fronts record each request once.
class RequestMetrics {
 public:
  void record(int grpc_code, std::int64_t duration_ns) noexcept {
    if (!metrics_on.load(std::memory_order_relaxed)) return;
    if (grpc_code < 0 || grpc_code >= kGrpcCodeCount) grpc_code = 2;  // UNKNOWN
    codes[static_cast<std::size_t>(grpc_code)].fetch_add(1, std::memory_order_relaxed);
    duration.observe(duration_ns);
  }

  std::array<std::atomic<std::uint64_t>, kGrpcCodeCount> codes{};
  DurationHistogram duration;
};

// What a lane counts once per request.
struct alignas(64) RequestCounts {
  RequestMetrics requests;
  DurationHistogram queue_duration;  // of those that reached a kernel
};

// The metrics of one lane. The fronts record `requests` and `Refusal::invalid_input`, the engine the rest.
struct LaneMetrics {
  void refuse(Refusal reason) noexcept {
    refused[static_cast<std::size_t>(reason)].fetch_add(1, std::memory_order_relaxed);
  }

  // Whether it has counted anything: only then are there series of it.
  bool used() const noexcept {
    const auto counted = [](const auto& counter) { return counter.load(std::memory_order_relaxed) != 0; };
    bool used = counted(rows) || std::any_of(refused.begin(), refused.end(), counted);
    counts.each([&](const RequestCounts& each) {
      used = used || std::any_of(each.requests.codes.begin(), each.requests.codes.end(), counted);
    });
    return used;
  }

  // Each request of a batch is charged the whole of what its batch took.
  void charge(std::uint64_t requests, std::int64_t gather, std::int64_t compute) noexcept {
    last_used_ns.store(std::chrono::steady_clock::now().time_since_epoch().count(),
                       std::memory_order_relaxed);
    if (!metrics_on.load(std::memory_order_relaxed)) return;
    gather_ns.fetch_add(requests * static_cast<std::uint64_t>(std::max<std::int64_t>(0, gather)),
                        std::memory_order_relaxed);
    compute_ns.fetch_add(requests * static_cast<std::uint64_t>(compute), std::memory_order_relaxed);
  }

  PerThread<RequestCounts> counts;
  DurationHistogram compute_duration;  // per batch
  RowHistogram batch_rows;             // per batch
  std::array<std::atomic<std::uint64_t>, kReleaseCount> batches{};
  std::array<std::atomic<std::uint64_t>, kRefusalCount> refused{};
  std::atomic<std::uint64_t> gather_ns{0};      // over requests: from the queue to the kernel call
  std::atomic<std::uint64_t> compute_ns{0};     // over requests: the kernel call
  std::atomic<std::int64_t> last_used_ns{0};    // the end of the last batch: which model to unload first
  std::atomic<std::uint64_t> rows{0};           // accepted
  std::atomic<std::uint64_t> kernel_errors{0};  // batches
  std::atomic<std::uint64_t> queued_rows{0};    // gauge
  std::atomic<std::uint64_t> in_flight{0};      // gauge: tickets accepted and not yet complete
};

}  // namespace fused_mlp
