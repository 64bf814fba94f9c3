// SPDX-License-Identifier: Apache-2.0
// Copies of the metrics, which Python reads at scrape time.
#pragma once

#include <map>
#include <string>
#include <tuple>

#include "engine/schedule/lane.hpp"

namespace fused_mlp {

struct RequestSnapshot {
  std::map<int, std::uint64_t> codes;  // by gRPC code; without those that never occurred
  HistogramSnapshot duration;
  std::int64_t failed_ns = 0;  // the part of `duration` with a code other than OK
};

struct LaneSnapshot {
  RequestSnapshot requests;
  HistogramSnapshot queue_duration;
  HistogramSnapshot compute_duration;
  HistogramSnapshot batch_rows;
  std::map<std::string, std::uint64_t> batches;  // by release reason, zeros included
  std::map<std::string, std::uint64_t> refused;  // by reason, zeros included
  std::uint64_t gather_ns = 0;
  std::uint64_t compute_ns = 0;
  std::uint64_t rows = 0;
  std::uint64_t wasted_rows = 0;
  std::uint64_t kernel_errors = 0;
  std::uint64_t wasted_ns = 0, queued_long = 0;
  std::uint64_t in_flight = 0;
};

struct ShadowSnapshot {
  std::map<std::string, std::uint64_t> batches;  // by outcome, zeros included
  std::uint64_t rows = 0;
  std::uint64_t disputed = 0;
  std::map<std::string, std::uint64_t> verdicts;  // zeros included
  HistogramSnapshot fused;
  HistogramSnapshot unfused;
  HistogramSnapshot differences;  // rows by kDifferenceBounds; the sum in millionths
  std::uint64_t top1_changes = 0;
  double max_absolute = 0;
  double max_relative = 0;
};

RequestSnapshot snapshot(const RequestMetrics& metrics);
ShadowSnapshot snapshot(const ShadowMetrics& metrics);
LaneSnapshot snapshot(const LaneMetrics& metrics);

// Requests, those whose gRPC code is a bit of `faults`, and time in the kernel. For one reader per second and
// lane.
using LaneTotals = std::tuple<std::uint64_t, std::uint64_t, std::uint64_t>;
LaneTotals totals(const LaneMetrics& metrics, std::uint32_t faults);

}  // namespace fused_mlp
