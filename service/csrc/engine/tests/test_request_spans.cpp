// SPDX-License-Identifier: Apache-2.0
// Sampled requests: who decides, how many are kept, and that threads may finish them while Python takes them.
#include <doctest/doctest.h>

#include <algorithm>
#include <thread>
#include <vector>

#include "engine/telemetry/exemplars.hpp"
#include "engine/telemetry/request_spans.hpp"

namespace fused_mlp::test {
namespace {

constexpr TraceContext kSampled{1, 2, 3, true}, kNotSampled{1, 2, 3, false};

bool sampled(const TraceContext& caller) { return sample_request(caller, "s/m", 0) != nullptr; }

struct Sampled {
  explicit Sampled(const Sampling& rules) { start_sampling(rules); }
  ~Sampled() {
    stop_sampling();
    static_cast<void>(take_request_spans());
  }
};

TEST_CASE("callers decide unless the sampler says otherwise") {
  {
    const Sampled parents({0.0, true});
    CHECK((sampled(kSampled) && !sampled(kNotSampled) && !sampled({})));
  }
  {
    const Sampled all({1.0, false});
    CHECK((sampled(kSampled) && sampled(kNotSampled) && sampled({})));
  }
  const Sampled half({0.5, false});  // by the lower half of the trace's id
  CHECK(sampled({9, ~std::uint64_t{0} / 2, 3, false}));
  CHECK(!sampled({9, ~std::uint64_t{0} / 2 + 2, 3, true}));
}

TEST_CASE("a request without a caller begins a trace") {
  const Sampled all({1.0, true});
  const auto first = sample_request({}, "s/m", 0), second = sample_request({}, "s/m", 0);
  CHECK((first->parent.present() && first->parent.span == 0));
  CHECK((first->parent.trace_low != second->parent.trace_low && first->id != second->id));
  CHECK(first->own().span == first->id);
}

TEST_CASE("spans that find no room are counted") {
  const Sampled all({1.0, true, 2});
  const std::uint64_t before = dropped_request_spans();
  for (int i = 0; i < 5; ++i) finish_request(sample_request({}, "s/m", 0));
  const std::vector<RequestSpan> taken = take_request_spans();
  CHECK((taken.size() == 2 && dropped_request_spans() - before == 3));
  finish_request(sample_request({}, "s/m", 0));
  CHECK(take_request_spans().size() == 1);
}

TEST_CASE("an address that fills the buffer loses its own spans") {
  const Sampled all({1.0, true, 4});
  const std::uint64_t before = dropped_request_spans();
  for (int i = 0; i < 100; ++i) finish_request(sample_request(kSampled, "s/m", 0, /*address=*/1));
  for (std::uint64_t address : {2, 3, 2}) finish_request(sample_request(kSampled, "s/m", 0, address));
  for (int i = 0; i < 100; ++i) finish_request(sample_request(kSampled, "s/m", 0, 1));
  std::vector<std::uint64_t> kept;
  for (const RequestSpan& span : take_request_spans()) kept.push_back(span.address);
  std::sort(kept.begin(), kept.end());
  CHECK_EQ(kept, (std::vector<std::uint64_t>{1, 1, 2, 3}));
  CHECK_EQ(dropped_request_spans() - before, 199u);
}

TEST_CASE("none is lost between threads") {
  constexpr std::size_t kEach = 2000;
  const Sampled all({1.0, true, 4 * kEach});
  std::vector<std::thread> threads;
  for (int t = 0; t < 2; ++t) {
    threads.emplace_back([] {
      for (std::size_t i = 0; i < kEach; ++i) finish_request(sample_request(kSampled, "s/m", 0));
    });
  }
  std::size_t seen = 0;
  for (int i = 0; i < 100; ++i) seen += take_request_spans().size();
  for (std::thread& thread : threads) thread.join();
  CHECK(seen + take_request_spans().size() == 2 * kEach);
}

TEST_CASE("each bucket keeps its last exemplar") {
  Exemplars exemplars;
  exemplars.offer(900, {1, 1, 1, true});
  exemplars.offer(1000, {2, 2, 2, true});
  exemplars.offer(1001, {3, 3, 3, true});
  const std::vector<Exemplar> all = exemplars.snapshot();
  CHECK(all.size() == kDurationBounds.size() + 1);
  CHECK((all[0].trace_low == 2 && all[0].value == 1000 && all[1].trace_low == 3 && all[2].trace_low == 0));
}

}  // namespace
}  // namespace fused_mlp::test
