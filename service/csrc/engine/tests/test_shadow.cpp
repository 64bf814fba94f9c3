// SPDX-License-Identifier: Apache-2.0
// The shadow: which batches it compares and which it skips, what it reports, and that no request is affected.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <thread>

#include "engine/shadow/shadow_worker.hpp"
#include "puppets.hpp"

namespace fused_mlp::test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
const float kNan = std::nanf("");

// Like PuppetKernel, but the last output of a batch is multiplied by `factor`.
class WrongKernel final : public Kernel {
 public:
  explicit WrongKernel(float factor) : factor_(factor) {}
  void run(const BatchBuffer& x, std::size_t first, std::size_t rows, const BatchBuffer& y,
           KernelResult&) noexcept override {
    for (std::size_t row = first; row < first + rows; ++row) {
      y.data().get()[row] = 2 * x.data().get()[row * Rig::kWidth];
    }
    y.data().get()[first + rows - 1] *= factor_;
  }

 private:
  float factor_;
};

// Stage 0 is fused, stage 1 unfused. Live batches run on the test's thread, comparisons on the shadow's.
struct ShadowRig : Rig {
  explicit ShadowRig(double share = 1) {
    fused = add_lane();
    unfused = add_lane();
    shadow = engine.add_shadow("m/1", fused, unfused);
    engine.set_shadow(*shadow, share, 1e-3);
  }
  ~ShadowRig() { engine.stop(); }
  // With a fused kernel whose last output is multiplied by `factor`.
  explicit ShadowRig(float factor) {
    LaneOptions options;
    options.in_features = kWidth;
    options.out_features = 1;
    fused = engine.add_lane(options, std::make_unique<WrongKernel>(factor));
    unfused = add_lane();
    shadow = engine.add_shadow("m/1", fused, unfused);
    engine.set_shadow(*shadow, 1, 1e-3);
  }
  const ShadowMetrics& seen() const { return shadow->metrics(); }
  // Waits until the shadow has compared or skipped that many batches. Advances the clock for its polls.
  void wait_settled(std::uint64_t batches) {
    while (seen().compared + seen().skipped + seen().failed < batches) {
      clock->advance(ShadowWorker::kPoll / 4);
      std::this_thread::yield();
    }
  }
  // Until the shadow runs its kernel. It may have seen the offer while the batch still counted as
  // outstanding: then it polls, and time must pass.
  void wait_comparing() {
    while (!stages[1]->is_running()) {
      clock->advance(ShadowWorker::kPoll / 4);
      std::this_thread::yield();
    }
  }
  std::vector<std::size_t> batches(std::size_t stage) {
    const std::lock_guard lock(stages[stage]->mutex);
    return stages[stage]->batches;
  }
  Ref<Probe> answer(Lane& lane, float value, std::uint32_t rows = 1) {
    auto probe = send(lane, value, rows);
    CHECK_EQ(run_all(), 1);
    CHECK_EQ(probe->outcome.status, Status::ok);
    return probe;
  }

  std::shared_ptr<Lane> fused, unfused;
  std::shared_ptr<Shadow> shadow;
};

TEST_CASE("shadow runs both variants on the same rows") {
  ShadowRig rig;
  rig.answer(*rig.fused, 3, 5);
  rig.wait_settled(1);
  CHECK((rig.batches(0) == std::vector<std::size_t>{5, 5}));  // live, then for the comparison
  CHECK((rig.batches(1) == std::vector<std::size_t>{5}));
  rig.answer(*rig.unfused, 4, 2);
  rig.wait_settled(2);
  CHECK_EQ(rig.seen().compared.load(), 2u);
  CHECK_EQ(rig.seen().rows.load(), 7u);
  CHECK_EQ(rig.seen().disputed.load(), 0u);
  CHECK_EQ(rig.seen().max_absolute.load(), 0.0);
  CHECK_EQ(rig.seen().fused.snapshot().count, 2u);
  CHECK_EQ(rig.seen().unfused.snapshot().count, 2u);
  // The lanes count live traffic only.
  CHECK_EQ(rig.fused->metrics->batch_rows().count, 1u);
  CHECK_EQ(rig.unfused->metrics->batch_rows().count, 1u);
}

TEST_CASE("shadow takes its share of batches and none when it is off") {
  ShadowRig rig(0.25);
  for (std::uint64_t i = 1; i <= 40; ++i) {
    rig.answer(*rig.fused, 1);
    rig.wait_settled(i / 4);
  }
  CHECK_EQ(rig.seen().compared.load(), 10u);
  rig.engine.set_shadow(*rig.shadow, 0, 1e-3);
  for (int i = 0; i < 20; ++i) rig.answer(*rig.fused, 1);
  CHECK_EQ(rig.batches(1).size(), 10u);
}

TEST_CASE("shadow never answers a caller and never delays one") {
  ShadowRig rig;
  rig.stages[1]->hold();  // blocks the shadow's first kernel call
  rig.answer(*rig.fused, 1);
  rig.wait_comparing();
  for (int i = 0; i < 20; ++i) {
    auto probe = rig.answer(*rig.fused, static_cast<float>(i), 2);
    CHECK_EQ(probe->completed.load(), 1);
    CHECK_EQ(probe->y[1], 2 * (static_cast<float>(i) + 1));
  }
  // One is running, one waits, the others were skipped.
  CHECK_EQ(rig.seen().skipped.load(), 19u);
  CHECK_EQ(rig.seen().compared.load(), 0u);
  CHECK_EQ(rig.inbox.completions(), 21);
  rig.stages[1]->release();
  rig.wait_settled(21);
  CHECK_EQ(rig.seen().compared.load(), 2u);
  CHECK_EQ(rig.inbox.completions(), 21);
}

TEST_CASE("shadow skips a batch if the engine stays busy") {
  ShadowRig rig;
  LaneOptions one_by_one;
  one_by_one.max_batch_rows = 1;
  auto busy = rig.add_lane(one_by_one);
  for (int i = 0; i < 4; ++i) rig.send(*busy, 1);
  auto probe = rig.send(*rig.fused, 1);
  while (probe->completed == 0) CHECK(rig.runner.run_ready());  // lanes are served round-robin
  CHECK(rig.engine.outstanding() > 0);
  rig.wait_settled(1);
  CHECK_EQ(rig.seen().skipped.load(), 1u);
  CHECK(rig.batches(1).empty());
  rig.run_all();
  rig.answer(*rig.fused, 1);
  rig.wait_settled(2);
  CHECK_EQ(rig.seen().compared.load(), 1u);
}

// Each comparison takes `comparison` on the clock, half of it per kernel. `began` records when the shadow ran
// the fused kernel.
struct SlowShadowRig : ShadowRig {
  SlowShadowRig(double share, Nanos comparison) : ShadowRig(share) {
    stages[0]->during = [this, comparison] {
      if (std::this_thread::get_id() == live) return;
      began.push_back(clock->now());
      clock->advance(comparison / 2);
    };
    stages[1]->during = [this, comparison] { clock->advance(comparison / 2); };
  }
  ~SlowShadowRig() { engine.stop(); }

  const std::thread::id live = std::this_thread::get_id();
  std::vector<Nanos> began;
};

TEST_CASE("shadow works for at most its share of the time") {
  SlowShadowRig rig(0.25, 2'000'000);
  const Nanos start = rig.clock->now();
  while (rig.seen().compared < 5) {
    rig.answer(*rig.fused, 1);
    rig.clock->advance(ShadowWorker::kPoll / 4);
    std::this_thread::yield();
  }
  rig.engine.stop();
  CHECK(rig.seen().skipped > 0);
  // From the start of one to the start of the next: 2 ms of work, 6 ms of back-off.
  for (std::size_t i = 1; i < rig.began.size(); ++i) CHECK(rig.began[i] - rig.began[i - 1] >= 7'000'000);
  CHECK(rig.seen().compared.load() * 8'000'000 <=
        static_cast<std::uint64_t>(rig.clock->now() - start) + 8'000'000);
}

TEST_CASE("a new share cancels the backoff") {
  SlowShadowRig rig(1e-3, 2'000'000'000);
  for (int i = 0; i < 1000; ++i) rig.answer(*rig.fused, 1);
  rig.wait_settled(1);
  rig.clock->wait_asleep(1);  // for more than half an hour
  const Nanos asked = rig.clock->now();
  rig.engine.set_shadow(*rig.shadow, 1, 1e-3);
  rig.answer(*rig.fused, 1);
  rig.wait_settled(2);
  CHECK_EQ(rig.seen().compared.load(), 2u);
  CHECK(rig.clock->now() - asked < 1'000'000'000'000);
}

TEST_CASE("a shadow with a small share does not delay another") {
  SlowShadowRig rig(0.01, 2'000'000'000);  // alone it would back off for minutes
  auto often_fused = rig.add_lane(), often_unfused = rig.add_lane();
  auto often = rig.engine.add_shadow("often/1", often_fused, often_unfused);
  rig.engine.set_shadow(*often, 1, 1e-3);
  for (int i = 0; i < 100; ++i) rig.answer(*rig.fused, 1);
  rig.wait_settled(1);
  const Nanos asked = rig.clock->now();
  rig.answer(*often_fused, 1);
  while (often->metrics().compared == 0) {
    rig.clock->advance(ShadowWorker::kPoll / 4);
    std::this_thread::yield();
  }
  CHECK(rig.clock->now() - asked < 100'000'000'000);
}

TEST_CASE("a shadow with little traffic gets a slot") {
  ShadowRig rig(0.5);
  auto rare_fused = rig.add_lane(), rare_unfused = rig.add_lane();
  auto rare = rig.engine.add_shadow("rare/1", rare_fused, rare_unfused);
  rig.engine.set_shadow(*rare, 1, 1e-3);
  rig.stages[1]->hold();
  rig.answer(*rig.fused, 1);
  rig.answer(*rig.fused, 1);
  rig.wait_comparing();
  for (int i = 0; i < 20; ++i) rig.answer(*rig.fused, 1);
  rig.answer(*rare_fused, 1);  // gets a slot although the other shadow has more traffic
  CHECK_EQ(rare->metrics().skipped.load(), 0u);
  rig.stages[1]->release();
  while (rare->metrics().compared == 0) {
    rig.clock->advance(ShadowWorker::kPoll / 4);
    std::this_thread::yield();
  }
}

TEST_CASE("a wrong kernel is found counted and reported with its rows") {
  ShadowRig rig(1.01f);
  for (std::uint64_t i = 1; i <= 3; ++i) {
    rig.answer(*rig.fused, 1, 4);
    rig.wait_settled(i);
  }
  CHECK_EQ(rig.seen().disputed.load(), 3u);
  CHECK(std::abs(rig.seen().max_absolute - 0.08) < 1e-6);  // 1 % of 2 * 4
  CHECK(std::abs(rig.seen().max_relative - 0.01) < 1e-6);
  rig.answer(*rig.unfused, 1, 4);  // the unfused variant answers
  rig.wait_settled(4);
  rig.engine.stop();
  CHECK_EQ(rig.disputes.size(), 4u);
  for (const Dispute& dispute : rig.disputes) {  // only the last row of each batch is wrong
    CHECK((dispute.x == std::vector<float>(Rig::kWidth, 4)));
    CHECK((dispute.fused == std::vector<float>{8 * 1.01f}));
    CHECK((dispute.unfused == std::vector<float>{8}));
  }
}

TEST_CASE("a verdict is counted every time and is the first of its kind once") {
  ShadowRig rig;
  CHECK(rig.shadow->record(Verdict::within_bound));
  CHECK(!rig.shadow->record(Verdict::within_bound));
  CHECK(rig.shadow->record(Verdict::fused_wrong));
  rig.shadow->restart();
  CHECK(rig.shadow->record(Verdict::within_bound));
  CHECK_EQ(rig.seen().verdicts[static_cast<std::size_t>(Verdict::within_bound)].load(), 3u);
}

TEST_CASE("a difference within the tolerance is no mismatch") {
  ShadowRig rig(1.0001f);
  rig.answer(*rig.fused, 1);
  rig.wait_settled(1);
  CHECK_EQ(rig.seen().disputed.load(), 0u);
  CHECK(rig.seen().max_relative > 5e-5);
}

TEST_CASE("nan in one variant alone is a mismatch") {
  ShadowRig rig(kNan);
  rig.answer(*rig.fused, 1);
  rig.wait_settled(1);
  CHECK_EQ(rig.seen().disputed.load(), 1u);
  CHECK_EQ(rig.seen().max_absolute.load(), std::numeric_limits<double>::infinity());
}

TEST_CASE("a kernel that fails in the shadow is counted and logged") {
  ShadowRig rig;
  rig.stages[1]->fail_next = true;
  rig.answer(*rig.fused, 1);
  rig.wait_settled(1);
  CHECK_EQ(rig.seen().failed.load(), 1u);
  rig.engine.stop();
  CHECK_EQ(rig.errors.size(), 1u);
  CHECK_EQ(rig.errors[0], "in a shadow comparison, no request was affected: told to fail");
}

TEST_CASE("without memory to tell of a failure it is still counted") {
  ShadowRig rig;
  rig.no_memory_for_errors = true;
  rig.stages[1]->fail_next = true;
  rig.answer(*rig.fused, 1);
  rig.wait_settled(1);
  CHECK_EQ(rig.seen().failed.load(), 1u);
}

TEST_CASE("a batch that failed is not compared") {
  ShadowRig rig;
  rig.stages[0]->fail_next = true;
  rig.send(*rig.fused, 1);
  CHECK_EQ(rig.run_all(), 1);
  rig.answer(*rig.fused, 1);
  rig.wait_settled(1);
  CHECK_EQ(rig.seen().compared.load(), 1u);
}

TEST_CASE("removed lanes free their kernels while batches wait") {
  auto stages = std::vector<std::shared_ptr<Stage>>();
  {
    ShadowRig rig;
    stages = rig.stages;
    rig.stages[1]->hold();
    rig.answer(*rig.fused, 1);
    rig.wait_comparing();
    rig.answer(*rig.fused, 1);
    rig.engine.remove_lane(rig.fused);
    rig.engine.remove_lane(rig.unfused);
    rig.fused = rig.unfused = nullptr;
    rig.stages[1]->release();
    rig.wait_settled(2);
    while (!stages[0]->freed || !stages[1]->freed) std::this_thread::yield();
  }
}

TEST_CASE("comparison counts only real differences") {
  OutputScale scale;
  const auto compare = [&scale](std::vector<float> a, std::vector<float> b) {
    return compare_outputs(a.data(), b.data(), 1, a.size(), scale, 0.01);
  };
  CHECK_EQ(compare({1, kInfinity, kNan}, {1, kInfinity, kNan}).absolute, 0.0);
  CHECK_EQ(compare({kInfinity}, {1}).relative, std::numeric_limits<double>::infinity());
  CHECK_EQ(compare({kNan}, {1}).relative, std::numeric_limits<double>::infinity());
  CHECK_EQ(compare({1, 2, 3}, {kNan, -kInfinity, 3}).absolute, 0.0);  // no finite reference
  CHECK_EQ(compare({-0.0f}, {0.0f}).absolute, 0.0);
  const Difference difference = compare({10, 0.5f}, {10, 0});
  CHECK_EQ(difference.absolute, 0.5);
  CHECK_EQ(difference.relative, 0.05);  // relative to its row's largest output
}

TEST_CASE("rows are disputed above the tolerance or where only the reference is not finite") {
  OutputScale scale;
  const auto disputed = [&scale](std::vector<float> a, std::vector<float> b) {
    const Difference difference = compare_outputs(a.data(), b.data(), a.size(), 1, scale, 0.1);
    return std::vector<std::size_t>(difference.disputed().begin(), difference.disputed().end());
  };
  CHECK((disputed({1, 1, kNan, 1}, {1, 1.05f, 1, 1.5f}) == std::vector<std::size_t>{2, 3}));
  CHECK((disputed({1, kNan, -kInfinity}, {kNan, kNan, kInfinity}) == std::vector<std::size_t>{0}));
  CHECK((disputed({2, 2, 2, 2, 2, 2}, {1, 1, 1, 1, 1, 1}) ==
         std::vector<std::size_t>{0, 1, 2, 3}));  // the first
}

TEST_CASE("an output near zero is compared at the scale of the others") {
  OutputScale scale;
  const auto compare = [&scale](float a, float b) {
    return compare_outputs(&a, &b, 1, 1, scale, 0.01).relative;
  };
  CHECK_EQ(compare(8, 8), 0.0);
  for (int i = 0; i < 30; ++i) CHECK_EQ(compare(8, 8), 0.0);
  CHECK(compare(1e-7f, 2e-7f) < 1e-7);
  OutputScale tiny;
  const float a = 1.1e-4f, b = 1e-4f;
  CHECK(compare_outputs(&a, &b, 1, 1, tiny, 0.01).relative >
        0.09);  // a model with small outputs is checked as strictly
}

TEST_CASE("one enormous row does not hide later differences") {
  OutputScale scale;
  const auto compare = [&scale](float a, float b) {
    return compare_outputs(&a, &b, 1, 1, scale, 0.01).relative;
  };
  for (int i = 0; i < 1000; ++i) CHECK_EQ(compare(1, 1), 0.0);
  CHECK_EQ(compare(1e30f, 1e30f), 0.0);
  CHECK(compare(5, 1) > 3.5);
}

TEST_CASE("a shadow of another version reports how outputs differ") {
  ShadowRig rig(0.0);  // the variants are not compared
  LaneOptions options;
  options.in_features = Rig::kWidth;
  options.out_features = 1;
  auto other =
      rig.engine.add_lane(options, std::make_unique<WrongKernel>(1.02f));  // on the last row of a batch
  rig.shadow =
      rig.engine.add_shadow("m 1/fused 2/fused", rig.fused, other, ShadowTime::cpu, ShadowKind::versions);
  rig.engine.set_shadow(*rig.shadow, 1, 1);
  rig.answer(*rig.fused, 4, 3);
  rig.wait_settled(1);
  CHECK_EQ(rig.seen().rows, 3u);
  CHECK_EQ(rig.seen().disputed, 0u);  // a difference between versions is no mistake
  CHECK_EQ(rig.seen().differences[0], 2u);
  const auto bound = std::lower_bound(kDifferenceBounds.begin(), kDifferenceBounds.end(), 0.02);
  CHECK_EQ(rig.seen().differences[static_cast<std::size_t>(bound - kDifferenceBounds.begin())], 1u);
  CHECK(std::abs(rig.seen().difference_sum - 0.02) < 1e-6);
  rig.answer(*rig.unfused, 4);  // not of the arm that is shadowed
  rig.answer(*rig.fused, 4, 2);
  rig.wait_settled(2);
  CHECK_EQ(rig.seen().rows, 5u);
}

TEST_CASE("lanes of other widths are not compared") {
  ShadowRig rig(0.0);
  LaneOptions options;
  options.in_features = Rig::kWidth + 1;
  options.out_features = 1;
  auto wider = rig.engine.add_lane(options, std::make_unique<WrongKernel>(1.0f));
  bool refused = false;
  try {
    rig.engine.add_shadow("m 1/fused 2/fused", rig.fused, wider, ShadowTime::cpu, ShadowKind::versions);
  } catch (const std::invalid_argument&) {
    refused = true;
  }
  CHECK(refused);
}

TEST_CASE("a row is compared by its largest difference and its largest output") {
  const float sent[] = {1, 4, 2}, same[] = {1, 4, 2}, other[] = {1, 4, 6}, overflowed[] = {1, kInfinity, 2};
  CHECK_EQ(compare_row(same, sent, 3, 0).relative, 0);
  CHECK_EQ(compare_row(other, sent, 3, 0).relative, 1);
  CHECK_EQ(compare_row(other, sent, 3, 8).relative, 0.5);  // of the usual size of outputs
  CHECK((compare_row(other, sent, 3, 0).top1_changed && !compare_row(same, sent, 3, 0).top1_changed));
  CHECK(std::isinf(compare_row(overflowed, sent, 3, 0).relative));
  CHECK(std::isinf(compare_row(sent, overflowed, 3, 0).relative));
}

}  // namespace
}  // namespace fused_mlp::test
