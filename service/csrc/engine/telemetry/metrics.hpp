// SPDX-License-Identifier: Apache-2.0
// The counters of the engine and the fronts: relaxed atomics, read by the collector at scrape time.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <new>

#include "engine/status.hpp"
#include "engine/telemetry/exemplars.hpp"
#include "engine/telemetry/histogram.hpp"
#include "engine/telemetry/per_thread.hpp"
#include "engine/ticket.hpp"

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
    if (grpc_code != 0)
      failed_ns.fetch_add(std::max<std::int64_t>(0, duration_ns), std::memory_order_relaxed);
  }

  std::array<std::atomic<std::uint64_t>, kGrpcCodeCount> codes{};
  DurationHistogram duration;
  std::atomic<std::int64_t> failed_ns{0};  // the part of `duration` with a code other than OK
};

// The counters that a lane updates once per request or batch. Each thread has a copy of its own.
struct alignas(64) LaneCounts {
  RequestMetrics requests;
  DurationHistogram queue_duration;    // of those that reached a kernel
  DurationHistogram compute_duration;  // per batch
  RowHistogram batch_rows;             // per batch
  std::array<std::atomic<std::uint64_t>, kReleaseCount> batches{};
  std::array<std::atomic<std::uint64_t>, kRefusalCount> refused{};
  std::atomic<std::uint64_t> gather_ns{0};           // over requests: from the queue to the kernel call
  std::atomic<std::uint64_t> compute_ns{0};          // over requests: the kernel call
  std::atomic<std::uint64_t> wasted_ns{0};           // kernel time for callers that were gone at its end
  std::atomic<std::uint64_t> queued_long{0};         // requests; see LaneMetrics::queued
  std::atomic<std::uint64_t> rows{0};                // accepted
  std::atomic<std::uint64_t> wasted_rows{0};         // computed for callers that were gone
  std::atomic<std::uint64_t> accepted{0}, ended{0};  // tickets
};

// The counters of a lane. They may outlive it, if their owner keeps them for the next lane: a model is
// unloaded and loaded again, and its counters go on. The fronts record `requests` and
// `Refusal::invalid_input`, the engine the rest.
struct LaneMetrics {
  void accept(std::uint64_t tickets, std::uint64_t rows) noexcept {
    LaneCounts& mine = counts.mine();
    mine.accepted.fetch_add(tickets, std::memory_order_relaxed);
    mine.rows.fetch_add(rows, std::memory_order_relaxed);
  }
  // Release: a reader that sees an end sees the acceptance as well.
  void end(std::uint64_t tickets) noexcept {
    counts.mine().ended.fetch_add(tickets, std::memory_order_release);
  }
  void refuse(Refusal reason) noexcept {
    counts.mine().refused[static_cast<std::size_t>(reason)].fetch_add(1, std::memory_order_relaxed);
  }
  void waste(std::uint64_t rows, std::uint64_t kernel_ns) noexcept {
    LaneCounts& mine = counts.mine();
    mine.wasted_rows.fetch_add(rows, std::memory_order_relaxed);
    mine.wasted_ns.fetch_add(kernel_ns, std::memory_order_relaxed);
  }

  // Each request of a batch is charged the whole of what its batch took.
  void charge(std::uint64_t requests, std::int64_t gather, std::int64_t compute) noexcept {
    if (!metrics_on.load(std::memory_order_relaxed)) return;
    LaneCounts& mine = counts.mine();
    mine.gather_ns.fetch_add(requests * static_cast<std::uint64_t>(std::max<std::int64_t>(0, gather)),
                             std::memory_order_relaxed);
    mine.compute_ns.fetch_add(requests * static_cast<std::uint64_t>(compute), std::memory_order_relaxed);
  }

  // A request has left the queue. Counts it if it spent more than half of its time there.
  void queued(const Ticket& ticket, std::int64_t queue_ns) noexcept {
    if (ticket.deadline_ns != 0 && queue_ns > (ticket.deadline_ns - ticket.arrival_ns) / 2) {
      counts.mine().queued_long.fetch_add(1, std::memory_order_relaxed);
    }
  }

  // Whether it has counted anything: only then are there series of it.
  bool used() const noexcept {
    const auto counted = [](const auto& counter) { return counter.load(std::memory_order_relaxed) != 0; };
    bool used = false;
    counts.each([&](const LaneCounts& each) {
      used = used || counted(each.rows) || std::any_of(each.refused.begin(), each.refused.end(), counted) ||
             std::any_of(each.requests.codes.begin(), each.requests.codes.end(), counted);
    });
    return used;
  }
  // Sums over all threads.
  std::uint64_t sum(std::atomic<std::uint64_t> LaneCounts::*counter) const noexcept {
    std::uint64_t total = 0;
    counts.each([&](const LaneCounts& each) { total += (each.*counter).load(std::memory_order_acquire); });
    return total;
  }
  template <std::size_t kSize>
  std::uint64_t sum(std::array<std::atomic<std::uint64_t>, kSize> LaneCounts::*counters,
                    std::size_t index) const noexcept {
    std::uint64_t total = 0;
    counts.each([&](const LaneCounts& each) { total += (each.*counters)[index].load(); });
    return total;
  }
  std::uint64_t rows() const noexcept { return sum(&LaneCounts::rows); }
  std::uint64_t wasted_rows() const noexcept { return sum(&LaneCounts::wasted_rows); }
  std::uint64_t refused(Refusal reason) const noexcept {
    return sum(&LaneCounts::refused, static_cast<std::size_t>(reason));
  }
  std::uint64_t batches(Release release) const noexcept {
    return sum(&LaneCounts::batches, static_cast<std::size_t>(release));
  }
  // Tickets accepted and not yet complete. Adds up the ended ones first: the result may be too large, for
  // tickets that came meanwhile, but never too small.
  std::uint64_t in_flight() const noexcept {
    const std::uint64_t ended = sum(&LaneCounts::ended);
    return sum(&LaneCounts::accepted) - ended;
  }
  HistogramSnapshot batch_rows() const {
    HistogramSnapshot result;
    counts.each([&](const LaneCounts& each) { each.batch_rows.add_to(result); });
    return result;
  }

  // Null until a request comes that a tracing system knows, and for lack of memory.
  LaneExemplars* exemplars() noexcept {
    LaneExemplars* before = exemplars_.load(std::memory_order_acquire);
    if (before != nullptr) return before;
    auto* const made = new (std::nothrow) LaneExemplars;
    if (exemplars_.compare_exchange_strong(before, made, std::memory_order_acq_rel)) return made;
    delete made;
    return before;
  }
  // Durations of answered requests at a fine resolution, counted from the first call of compare_latencies on:
  // a canary asks for them.
  LogLinearHistogram* latencies() noexcept { return latencies_.load(std::memory_order_acquire); }
  LogLinearHistogram& compare_latencies() {
    LogLinearHistogram* before = latencies();
    if (before != nullptr) return *before;
    auto made = std::make_unique<LogLinearHistogram>();
    if (latencies_.compare_exchange_strong(before, made.get(), std::memory_order_acq_rel)) {
      return *made.release();
    }
    return *before;
  }
  const LaneExemplars* seen_exemplars() const noexcept { return exemplars_.load(std::memory_order_acquire); }

  LaneMetrics() = default;
  LaneMetrics(const LaneMetrics&) = delete;
  LaneMetrics& operator=(const LaneMetrics&) = delete;
  ~LaneMetrics() {
    delete exemplars_.load(std::memory_order_relaxed);
    delete latencies_.load(std::memory_order_relaxed);
  }

  PerThread<LaneCounts> counts;
  std::atomic<std::uint64_t> kernel_errors{0};  // batches

 private:
  std::atomic<LaneExemplars*> exemplars_{nullptr};
  std::atomic<LogLinearHistogram*> latencies_{nullptr};
};

}  // namespace fused_mlp
