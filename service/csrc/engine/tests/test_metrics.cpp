// SPDX-License-Identifier: Apache-2.0
// Counters with one copy per thread: nothing is lost, and threads do not write to each other's lines.
#include <doctest/doctest.h>

#include <set>
#include <thread>
#include <vector>

#include "engine/telemetry/metrics.hpp"

namespace fused_mlp::test {
namespace {

constexpr int kOk = 0;

TEST_CASE("requests of many threads are all counted") {
  constexpr unsigned kThreads = 3 * PerThread<LaneCounts>::kCopies;  // so that some share a copy
  constexpr unsigned kRequests = 2000;
  LaneMetrics metrics;
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      for (unsigned i = 0; i < kRequests; ++i) metrics.counts.mine().requests.record(kOk, 1000);
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::uint64_t counted = 0;
  HistogramSnapshot durations;
  metrics.counts.each([&](const LaneCounts& each) {
    counted += each.requests.codes[kOk].load();
    each.requests.duration.add_to(durations);
  });
  CHECK_EQ(counted, std::uint64_t{kThreads} * kRequests);
  CHECK_EQ(durations.count, counted);
  CHECK_EQ(durations.sum, static_cast<std::int64_t>(1000 * counted));
}

TEST_CASE("threads count in places of their own") {
  LaneMetrics metrics;
  CHECK(!metrics.used());
  LaneCounts* others = nullptr;
  std::thread([&] { others = &metrics.counts.mine(); }).join();
  LaneCounts* const mine = &metrics.counts.mine();
  CHECK(mine != others);
  CHECK(mine == &metrics.counts.mine());
  CHECK_EQ(reinterpret_cast<std::uintptr_t>(mine) % 64, 0u);
  CHECK(!metrics.used());  // looked up, not counted
  std::thread([&] { others->requests.record(kOk, 1); }).join();
  CHECK(metrics.used());
}

}  // namespace
}  // namespace fused_mlp::test
