// SPDX-License-Identifier: Apache-2.0
// The engine's promises over a kernel that waits for a device: the launcher of kernels/csrc/cuda on the fake
// driver, which FUSED_MLP_LIBCUDA names.
#include <dlfcn.h>
#include <doctest/doctest.h>

#include <cstdlib>
#include <thread>

#include "cuda/kernel.hpp"
#include "engine/run/busy_threads.hpp"
#include "engine/shadow/shadow_worker.hpp"
#include "puppets.hpp"
#include "tests/fake_cuda/control.h"

namespace fused_mlp::test {
namespace {

using std::chrono::seconds;

// y = 2 * the first column of x, as PuppetKernel.
void twice(const fake_cuda_launch* launch) {
  const auto rows = static_cast<std::uint32_t>(launch->parameters[2]);
  const auto* x =
      static_cast<const float*>(launch->at(launch->parameters[0], rows * Rig::kWidth * sizeof(float)));
  auto* y = static_cast<float*>(launch->at(launch->parameters[1], rows * sizeof(float)));
  if (x == nullptr || y == nullptr) return;
  for (std::uint32_t row = 0; row < rows; ++row) y[row] = 2 * x[row * Rig::kWidth];
}

const fake_cuda_control& fake() {
  static const fake_cuda_control* const found = [] {
    const char* const name = std::getenv("FUSED_MLP_LIBCUDA");
    void* const library = name != nullptr ? dlopen(name, RTLD_NOW) : nullptr;
    if (library == nullptr) std::abort();
    auto* made = reinterpret_cast<decltype(&fake_cuda_controls)>(dlsym(library, "fake_cuda_controls"))();
    made->add_kernel("twice", twice);
    return made;
  }();
  return *found;
}

constexpr const char* kPtx =
    ".version 8.0\n.target sm_80\n.visible .entry twice(.param .u64 x, .param .u64 y, .param .u32 rows) { "
    "ret; }";

// A rig whose lane runs on the device.
struct DeviceRig : Rig {
  explicit DeviceRig(unsigned workers, int ordinal = 0) : Rig(workers) {
    (void)fake();  // registers the kernel
    using Argument = cuda::Argument;
    cuda::Plan plan{"twice/16", kWidth, 1, {}, {{"", kPtx, "twice", 32, 0}}, {}};
    plan.launches = {{0, 16, 1, {{Argument::kX}, {Argument::kY}, {Argument::kRows}}}};
    auto kernel = std::make_shared<cuda::CudaKernel>(cuda::Device::open(ordinal), plan, 2);
    device = &kernel->device();
    LaneOptions options;
    options.in_features = kWidth;
    options.out_features = 1;
    options.queue_rows = 10'000;
    lane = engine.add_lane(options, std::make_unique<CapsuleKernel>(kernel->api(), kernel));
    fake().reset();  // what follows is counted from here
  }
  ~DeviceRig() {
    fake().hold(0);
    engine.stop();
    fake().reset();
  }
  void wait_until_the_device_has_work(unsigned batches = 1) const {
    while (fake().calls("cuLaunchHostFunc") < batches) std::this_thread::yield();
  }

  cuda::Device* device = nullptr;
  std::shared_ptr<Lane> lane;
};

TEST_CASE("batches run on the device and never on a loop") {
  DeviceRig rig(1);
  const auto probe = rig.ticket(3, 5);
  CHECK(rig.submit_here(*rig.lane, probe) == Status::ok);
  CHECK_EQ(rig.run_all(), 0);
  rig.inbox.wait_for(1);
  CHECK_EQ(probe->y, (std::vector<float>{6, 8, 10, 12, 14}));
  CHECK_EQ(probe->strategy, "twice/16");
}

TEST_CASE("a slow device delays neither cancelled nor expired tickets for longer than its batch") {
  DeviceRig rig(1);
  fake().hold(1);
  const auto first = rig.send(*rig.lane, 1);
  rig.wait_until_the_device_has_work();
  const auto gone = rig.send(*rig.lane, 2);
  auto late = rig.ticket(3);
  late->deadline_ns = rig.clock->now() + 1000;
  CHECK(rig.submit(*rig.lane, late) == Status::ok);
  const auto last = rig.send(*rig.lane, 4);
  gone->cancel();
  rig.clock->advance(2000);
  fake().hold(0);
  rig.inbox.wait_for(4);
  CHECK_EQ(first->y, std::vector<float>{2});
  CHECK_EQ(last->y, std::vector<float>{8});
  CHECK(gone->outcome.status == Status::cancelled);
  CHECK(late->outcome.status == Status::deadline_expired);
}

TEST_CASE("a drain waits for the device") {
  DeviceRig rig(2);
  fake().hold(1);
  const auto probe = rig.send(*rig.lane, 1);
  rig.wait_until_the_device_has_work();
  rig.engine.begin_drain();
  CHECK(!rig.engine.wait_idle(std::chrono::milliseconds(1)));
  fake().hold(0);
  CHECK(rig.engine.wait_idle(seconds(30)));
  CHECK_EQ(probe->y, std::vector<float>{2});
}

TEST_CASE("one failing batch fails only its own tickets") {
  DeviceRig rig(1);
  fake().fail("cuLaunchKernel", 701, 0, 1);
  const auto failed = rig.send(*rig.lane, 1);
  rig.inbox.wait_for(1);
  const auto next = rig.send(*rig.lane, 2);
  rig.inbox.wait_for(2);
  CHECK(failed->outcome.status == Status::kernel_error);
  CHECK_EQ(next->y, std::vector<float>{4});
  CHECK(rig.engine.wait_idle(seconds(30)));
  const std::lock_guard lock(rig.errors_mutex);
  CHECK_EQ(rig.errors.size(), 1u);
  CHECK(rig.errors[0].find("CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES") != std::string::npos);
}

TEST_CASE("after a sticky error every batch fails at once") {
  DeviceRig rig(1);
  fake().fail("kernel", 719, 0, 1);
  const auto first = rig.send(*rig.lane, 1);
  rig.inbox.wait_for(1);
  const auto second = rig.send(*rig.lane, 2);
  rig.inbox.wait_for(2);
  CHECK(first->outcome.status == Status::kernel_error);
  CHECK(second->outcome.status == Status::kernel_error);
  CHECK_EQ(rig.device->sticky_error(), 719);
  CHECK_EQ(fake().calls("cuLaunchKernel"), 1u);
}

TEST_CASE("a thread that waits for the device leaves its core to others") {
  DeviceRig rig(1);
  fake().hold(1);
  const auto probe = rig.send(*rig.lane, 1);
  rig.wait_until_the_device_has_work();
  CHECK_EQ(busy_threads.load(), 0u);
  fake().hold(0);
  rig.inbox.wait_for(1);
  CHECK(rig.engine.wait_idle(seconds(30)));
}

// Two batches are in flight; a third one would only wait for them, on the worker that other lanes need.
TEST_CASE("a backlog of the device leaves workers to other lanes") {
  DeviceRig rig(3);
  const auto other = rig.add_lane({}, /*python=*/true);
  const std::uint32_t full = rig.lane->options.max_batch_rows;
  fake().hold(1);
  std::vector<Ref<Probe>> probes;
  for (unsigned batches = 1; batches <= 2; ++batches) {
    probes.push_back(rig.send(*rig.lane, 1, full));
    rig.wait_until_the_device_has_work(batches);
  }
  probes.push_back(rig.send(*rig.lane, 1, full));
  Inbox answers;
  const auto beside = rig.ticket(5, 1, &answers);
  CHECK(rig.submit(*other, beside) == Status::ok);
  const auto until = std::chrono::steady_clock::now() + seconds(20);
  while (answers.completions() == 0 && std::chrono::steady_clock::now() < until) std::this_thread::yield();
  CHECK_EQ(answers.completions(), 1);
  CHECK_EQ(rig.lane->queued_rows.load(), full);
  fake().hold(0);
  rig.inbox.wait_for(3);
  for (const auto& probe : probes) CHECK_EQ(probe->y[full - 1], static_cast<float>(2 * full));
  CHECK(rig.engine.wait_idle(seconds(30)));
}

// A backlog of two full batches, for one worker, before a device that does nothing yet. `cancelled`: the
// second.
struct Backlog {
  explicit Backlog(DeviceRig& rig, bool cancelled = false) : full(rig.lane->options.max_batch_rows) {
    const auto other = rig.add_lane({}, /*python=*/true);
    const std::shared_ptr<Stage> stage = rig.stages.back();
    stage->hold();
    (void)rig.send(*other, 1);
    stage->wait_running(1);
    first = rig.send(*rig.lane, 1, full);
    second = rig.send(*rig.lane, 2, full);
    if (cancelled) second->cancel();
    stage->release();
  }
  const std::uint32_t full;
  Ref<Probe> first, second;
};

TEST_CASE("one worker starts the next batch while the device computes") {
  DeviceRig rig(1);
  fake().hold(1);
  const Backlog backlog(rig);
  while (fake().calls("cuLaunchKernel") < 2) std::this_thread::yield();
  CHECK_EQ(backlog.first->completed.load(), 0);
  // Neither waits for its place in the order: what is cancelled or expired is dropped when the device is free
  // again.
  const auto gone = rig.send(*rig.lane, 3);
  gone->cancel();
  fake().hold(0);
  rig.inbox.wait_for(4);
  CHECK_EQ(backlog.first->y[backlog.full - 1], static_cast<float>(2 * backlog.full));
  CHECK_EQ(backlog.second->y[0], 4.0f);
  CHECK(gone->outcome.status == Status::cancelled);
  CHECK(rig.engine.wait_idle(seconds(30)));
}

TEST_CASE("what was cancelled does not wait for the batch in flight") {
  DeviceRig rig(1);
  fake().hold(1);
  const Backlog backlog(rig, /*cancelled=*/true);
  const auto until = std::chrono::steady_clock::now() + seconds(20);
  while (backlog.second->completed.load() == 0 && std::chrono::steady_clock::now() < until) {
    std::this_thread::yield();
  }
  CHECK_EQ(backlog.second->completed.load(), 1);
  CHECK(backlog.second->outcome.status == Status::cancelled);
  CHECK_EQ(backlog.first->completed.load(), 0);
  fake().hold(0);
  rig.inbox.wait_for(3);
  CHECK(rig.engine.wait_idle(seconds(30)));
}

TEST_CASE("a shadow without room costs no copy of the rows") {
  DeviceRig rig(1);
  const auto unfused = rig.add_lane({}, /*python=*/true);
  const std::shared_ptr<Stage> stage = rig.stages.back();
  stage->hold();
  const auto shadow = rig.engine.add_shadow("m/1", rig.lane, unfused);
  rig.engine.set_shadow(*shadow, 1, 1e-3);
  const auto is_comparing = [&] {
    const std::lock_guard lock(stage->mutex);
    return stage->running > 0;
  };
  std::vector<std::size_t> bytes;
  for (int batch = 1; batch <= 3; ++batch) {  // one is compared, one waits for it, one is too much
    (void)rig.send(*rig.lane, 1, 8);
    rig.inbox.wait_for(batch);
    CHECK(rig.engine.wait_idle(seconds(30)));
    while (!is_comparing()) {
      rig.clock->advance(ShadowWorker::kPoll / 4);
      std::this_thread::yield();
    }
    rig.clock->wait_asleep(1);  // the worker, which has counted its buffers
    bytes.push_back(rig.engine.buffer_bytes());
  }
  stage->release();
  CHECK_EQ(shadow->metrics().skipped.load(), 1u);
  CHECK_EQ(bytes, (std::vector<std::size_t>{0, 0, 0}));
}

TEST_CASE("a batch that cannot be started fails alone beside one in flight") {
  for (const int failing : {0, 1}) {
    DeviceRig rig(1);
    fake().fail("cuLaunchKernel", 701, failing, 1);
    const Backlog backlog(rig);
    rig.inbox.wait_for(3);
    CHECK(backlog.first->outcome.status == (failing == 0 ? Status::kernel_error : Status::ok));
    CHECK(backlog.second->outcome.status == (failing == 1 ? Status::kernel_error : Status::ok));
    CHECK_EQ((failing == 0 ? backlog.second : backlog.first)->y[0], failing == 0 ? 4.0f : 2.0f);
    CHECK(rig.engine.wait_idle(seconds(30)));
  }
}

TEST_CASE("a batch for the cpu that is due goes before more for the device") {
  DeviceRig rig(1);
  fake().hold(1);
  const auto first = rig.send(*rig.lane, 1);
  rig.wait_until_the_device_has_work();
  const auto other = rig.add_lane({}, /*python=*/true);
  Inbox answers;
  CHECK(rig.submit(*other, rig.ticket(5, 1, &answers)) == Status::ok);
  std::vector<Ref<Probe>> more;
  for (int i = 0; i < 8; ++i) more.push_back(rig.send(*rig.lane, 1, rig.lane->options.max_batch_rows));
  fake().hold(0);
  answers.wait_for(1);
  CHECK(more.back()->completed.load() == 0);
  rig.inbox.wait_for(9);
  CHECK(rig.engine.wait_idle(seconds(30)));
}

// A ticket of one row that does something while it is gathered.
class Gathered final : public Ticket {
 public:
  Gathered(Rig& rig, std::function<void()> during)
      : Ticket(1, &rig.inbox), rig_(rig), during_(std::move(during)) {}

 protected:
  void gather(float* to) noexcept override {
    during_();
    std::fill_n(to, Rig::kWidth, 0.0f);
  }
  void complete(const Outcome&) noexcept override { rig_.inbox.arrived(); }

 private:
  Rig& rig_;
  std::function<void()> during_;
};

// A worker that waits for the device keeps nothing that another one could run.
TEST_CASE("a batch for the cpu is left to a worker that is free") {
  DeviceRig rig(2);
  fake().hold(1);
  const auto other = rig.add_lane({}, /*python=*/true), last = rig.add_lane({}, /*python=*/true);
  const std::shared_ptr<Stage> stage = rig.stages.back();
  stage->hold();
  (void)rig.send(*last, 1);
  stage->wait_running(1);
  Inbox answers;
  // By the worker that gathers it, which then looks for more.
  const auto on_device =
      make_ref<Gathered>(rig, [&] { CHECK(rig.submit(*other, rig.ticket(5, 1, &answers)) == Status::ok); });
  CHECK(rig.engine.submit(*rig.lane, Ref<Ticket>(Ref<Gathered>(on_device))) == Status::ok);
  rig.wait_until_the_device_has_work();
  stage->release();
  const auto until = std::chrono::steady_clock::now() + seconds(20);
  while (answers.completions() == 0 && std::chrono::steady_clock::now() < until) std::this_thread::yield();
  CHECK_EQ(answers.completions(), 1);
  fake().hold(0);
  rig.inbox.wait_for(2);
  CHECK(rig.engine.wait_idle(seconds(30)));
}

TEST_CASE("a device that hangs fails its batches and holds up no drain") {
  DeviceRig rig(2, 1);
  rig.device->set_patience(std::chrono::milliseconds(30));
  fake().hold(1);
  const auto first = rig.send(*rig.lane, 1);
  rig.wait_until_the_device_has_work();
  rig.engine.begin_drain();
  CHECK(rig.engine.wait_idle(seconds(30)));
  CHECK(first->outcome.status == Status::kernel_error);
  CHECK(rig.device->hangs());
  rig.engine.stop();
}

TEST_CASE("many batches on two workers") {
  DeviceRig rig(2);
  std::vector<Ref<Probe>> probes;
  for (int i = 0; i < 300; ++i) probes.push_back(rig.send(*rig.lane, static_cast<float>(i), 1 + i % 40));
  rig.inbox.wait_for(300);
  for (int i = 0; i < 300; ++i) {
    for (int row = 0; row <= i % 40; ++row) {
      CHECK_EQ(probes[static_cast<std::size_t>(i)]->y[static_cast<std::size_t>(row)],
               static_cast<float>(2 * (i + row)));
    }
  }
}

}  // namespace
}  // namespace fused_mlp::test
