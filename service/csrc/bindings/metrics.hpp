// Metrics as Python reads them at scrape time.
#pragma once

#include <map>
#include <string>

#include "engine/lane.hpp"

namespace fused_mlp {

struct RequestSnapshot {
  std::map<int, std::uint64_t> codes;  // by gRPC code, those that occurred
  HistogramSnapshot duration;
};

struct LaneSnapshot {
  RequestSnapshot requests;
  HistogramSnapshot queue_duration;
  HistogramSnapshot compute_duration;
  HistogramSnapshot batch_rows;
  std::map<std::string, std::uint64_t> batches;  // by release reason, all of them
  std::map<std::string, std::uint64_t> refused;  // by reason, all of them
  std::uint64_t rows = 0;
  std::uint64_t kernel_errors = 0;
  std::uint64_t queued_rows = 0;
  std::uint64_t in_flight = 0;
};

struct ShadowSnapshot {
  std::map<std::string, std::uint64_t> batches;  // by outcome, all of them
  std::uint64_t rows = 0;
  std::uint64_t mismatches = 0;
  HistogramSnapshot fused;
  HistogramSnapshot unfused;
  double max_absolute = 0;
  double max_relative = 0;
};

RequestSnapshot snapshot(const RequestMetrics& metrics);
ShadowSnapshot snapshot(const ShadowMetrics& metrics);
LaneSnapshot snapshot(const LaneMetrics& metrics);

}  // namespace fused_mlp
