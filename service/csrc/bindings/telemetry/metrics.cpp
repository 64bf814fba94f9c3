// SPDX-License-Identifier: Apache-2.0
#include "bindings/telemetry/metrics.hpp"

#include <nanobind/stl/map.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>

#include "bindings/register.hpp"

namespace nb = nanobind;

namespace fused_mlp {

namespace {

std::uint64_t read(const std::atomic<std::uint64_t>& value) { return value.load(std::memory_order_relaxed); }

template <class Bounds>
nb::tuple as_tuple(const Bounds& bounds) {
  nb::list list;
  for (const auto bound : bounds) list.append(bound);
  return nb::tuple(list);
}

void add(const RequestMetrics& metrics, RequestSnapshot& result) {
  for (int code = 0; code < kGrpcCodeCount; ++code) {
    const std::uint64_t count = read(metrics.codes[static_cast<std::size_t>(code)]);
    if (count > 0) result.codes[code] += count;
  }
  metrics.duration.add_to(result.duration);
  result.failed_ns += metrics.failed_ns.load(std::memory_order_relaxed);
}

}  // namespace

RequestSnapshot snapshot(const RequestMetrics& metrics) {
  RequestSnapshot result;
  add(metrics, result);
  return result;
}

LaneSnapshot snapshot(const LaneMetrics& metrics) {
  LaneSnapshot result;
  metrics.counts.each([&](const LaneCounts& each) {
    add(each.requests, result.requests);
    each.queue_duration.add_to(result.queue_duration);
    each.compute_duration.add_to(result.compute_duration);
    each.batch_rows.add_to(result.batch_rows);
    result.gather_ns += read(each.gather_ns);
    result.compute_ns += read(each.compute_ns);
    result.wasted_ns += read(each.wasted_ns);
    result.queued_long += read(each.queued_long);
  });
  if (const LaneExemplars* const seen = metrics.seen_exemplars()) {
    result.requests.duration.exemplars = seen->request.snapshot();
    result.queue_duration.exemplars = seen->queue.snapshot();
    result.compute_duration.exemplars = seen->compute.snapshot();
  }
  for (int i = 0; i < kReleaseCount; ++i) {
    const auto release = static_cast<Release>(i);
    result.batches[release_name(release)] = metrics.batches(release);
  }
  for (int i = 0; i < kRefusalCount; ++i) {
    const auto refusal = static_cast<Refusal>(i);
    result.refused[refusal_name(refusal)] = metrics.refused(refusal);
  }
  result.rows = metrics.rows();
  result.wasted_rows = metrics.wasted_rows();
  result.kernel_errors = read(metrics.kernel_errors);
  result.in_flight = metrics.in_flight();
  return result;
}

LaneTotals totals(const LaneMetrics& metrics, std::uint32_t faults) {
  std::uint64_t requests = 0, failed = 0, compute_ns = 0;
  metrics.counts.each([&](const LaneCounts& each) {
    for (std::size_t code = 0; code < each.requests.codes.size(); ++code) {
      const std::uint64_t count = read(each.requests.codes[code]);
      requests += count;
      if (faults >> code & 1) failed += count;
    }
    compute_ns += static_cast<std::uint64_t>(each.compute_duration.sum());
  });
  return {requests, failed, compute_ns};
}

ShadowSnapshot snapshot(const ShadowMetrics& metrics) {
  ShadowSnapshot result;
  result.batches = {{"compared", read(metrics.compared)},
                    {"skipped", read(metrics.skipped)},
                    {"failed", read(metrics.failed)}};
  result.rows = read(metrics.rows);
  result.disputed = read(metrics.disputed);
  for (std::size_t i = 0; i < kVerdictNames.size(); ++i) {
    result.verdicts[kVerdictNames[i]] = read(metrics.verdicts[i]);
  }
  result.fused = metrics.fused.snapshot();
  result.unfused = metrics.unfused.snapshot();
  for (const auto& each : metrics.differences) {
    result.differences.buckets.push_back(read(each));
    result.differences.count += result.differences.buckets.back();
  }
  const double sum = metrics.difference_sum.load(std::memory_order_relaxed) * 1e6;
  result.differences.sum = static_cast<std::int64_t>(std::min(sum, 9e18));
  result.top1_changes = read(metrics.top1_changes);
  result.max_absolute = metrics.max_absolute.load(std::memory_order_relaxed);
  result.max_relative = metrics.max_relative.load(std::memory_order_relaxed);
  return result;
}

void register_metrics(nb::module_& m) {
  m.attr("DURATION_BOUNDS_NS") = as_tuple(kDurationBounds);
  nb::list latency_bounds;
  for (std::size_t i = 1; i < LogLinearHistogram::kBuckets; ++i) {
    latency_bounds.append(LogLinearHistogram::lower_bound(i));
  }
  m.attr("LATENCY_BOUNDS_NS") = nb::tuple(latency_bounds);
  m.attr("ROW_BOUNDS") = as_tuple(kRowBounds);
  m.attr("DIFFERENCE_BOUNDS") = as_tuple(kDifferenceBounds);
  m.def(
      "record_metrics", [](bool on) { metrics_on.store(on, std::memory_order_relaxed); }, nb::arg("on"));

  nb::class_<HistogramSnapshot>(m, "HistogramSnapshot")
      .def_ro("buckets", &HistogramSnapshot::buckets)
      .def_ro("count", &HistogramSnapshot::count)
      .def_ro("sum", &HistogramSnapshot::sum);
  nb::class_<RequestMetrics>(m, "RequestMetrics", "Requests by gRPC code.")
      .def(nb::init<>())
      .def("snapshot", [](const RequestMetrics& metrics) { return snapshot(metrics); });
  nb::class_<LaneMetrics>(m, "LaneMetrics", "What a lane, and those after it, have counted.")
      .def(nb::init<>())
      .def_prop_ro("used", &LaneMetrics::used)
      .def("totals", &totals, nb::arg("faults"))
      .def("snapshot", [](const LaneMetrics& metrics) { return snapshot(metrics); });
  nb::class_<ShadowMetrics>(m, "ShadowMetrics", "What a shadow, and those after it, have counted.")
      .def(nb::init<>())
      .def("snapshot", [](const ShadowMetrics& metrics) { return snapshot(metrics); });
  nb::class_<RequestSnapshot>(m, "RequestSnapshot")
      .def_ro("codes", &RequestSnapshot::codes)
      .def_ro("duration", &RequestSnapshot::duration)
      .def_ro("failed_ns", &RequestSnapshot::failed_ns);
  nb::class_<LaneSnapshot>(m, "LaneSnapshot")
      .def_ro("requests", &LaneSnapshot::requests)
      .def_ro("queue_duration", &LaneSnapshot::queue_duration)
      .def_ro("compute_duration", &LaneSnapshot::compute_duration)
      .def_ro("batch_rows", &LaneSnapshot::batch_rows)
      .def_ro("batches", &LaneSnapshot::batches)
      .def_ro("refused", &LaneSnapshot::refused)
      .def_ro("gather_ns", &LaneSnapshot::gather_ns)
      .def_ro("compute_ns", &LaneSnapshot::compute_ns)
      .def_ro("rows", &LaneSnapshot::rows)
      .def_ro("wasted_rows", &LaneSnapshot::wasted_rows)
      .def_ro("kernel_errors", &LaneSnapshot::kernel_errors)
      .def_ro("wasted_ns", &LaneSnapshot::wasted_ns)
      .def_ro("queued_long", &LaneSnapshot::queued_long)
      .def_ro("in_flight", &LaneSnapshot::in_flight);
  nb::class_<ShadowSnapshot>(m, "ShadowSnapshot")
      .def_ro("batches", &ShadowSnapshot::batches)
      .def_ro("rows", &ShadowSnapshot::rows)
      .def_ro("disputed", &ShadowSnapshot::disputed)
      .def_ro("verdicts", &ShadowSnapshot::verdicts)
      .def_ro("fused", &ShadowSnapshot::fused)
      .def_ro("unfused", &ShadowSnapshot::unfused)
      .def_ro("differences", &ShadowSnapshot::differences)
      .def_ro("top1_changes", &ShadowSnapshot::top1_changes)
      .def_ro("max_absolute", &ShadowSnapshot::max_absolute)
      .def_ro("max_relative", &ShadowSnapshot::max_relative);
}

}  // namespace fused_mlp
