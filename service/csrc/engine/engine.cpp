// SPDX-License-Identifier: Apache-2.0
#include "engine/engine.hpp"

#include <pthread.h>

#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

#include "engine/reaper.hpp"
#include "engine/run/background.hpp"
#include "engine/run/batch_runner.hpp"
#include "engine/run/busy_threads.hpp"
#include "engine/schedule/scheduler.hpp"

namespace fused_mlp {

// Shared by the engine, its workers and the inline runners; the last of them destroys it.
class EngineCore {
 public:
  explicit EngineCore(EngineOptions given)
      : options(std::move(given)),
        clock(options.clock ? options.clock : std::make_shared<SteadyClock>()),
        scheduler(*clock, options.workers),
        shadow(*clock, scheduler, {options.on_dispute, options.on_kernel_error}) {}

  EngineOptions options;
  std::shared_ptr<Clock> clock;
  Scheduler scheduler;
  ShadowWorker shadow;
  RequestMetrics unrouted;
  std::mutex stop_mutex;
  std::vector<std::thread> workers;  // guarded by stop_mutex
  bool stopped = false;              // guarded by stop_mutex
  std::atomic<bool> shadow_started{false};
  std::atomic<std::size_t> buffer_bytes{0};
};

namespace {

// The engine whose batch this thread is running. stop() called from that batch must not wait for it.
thread_local const EngineCore* current_engine = nullptr;

class CurrentEngine {
 public:
  explicit CurrentEngine(const EngineCore& core) : outer_(std::exchange(current_engine, &core)) {}
  ~CurrentEngine() { current_engine = outer_; }
  CurrentEngine(const CurrentEngine&) = delete;
  CurrentEngine& operator=(const CurrentEngine&) = delete;

 private:
  const EngineCore* const outer_;
};

void run_batch(EngineCore& core, BatchRunner& runner, TakenBatch& batch, LoopQueue* loop = nullptr) {
  const CurrentEngine current(core);
  core.scheduler.finished(batch, runner.run(batch), loop);
}

// A batch and what runs it.
struct Flight {
  BatchRunner* runner;
  TakenBatch* batch;
};

// Runs a batch that a worker took. While a device computes it, the worker gathers and starts the next one for
// a device, and so on: two are under way, and end in the order in which they began.
void run_ahead(EngineCore& core, Flight now, Flight next) {
  const CurrentEngine current(core);
  Nanos since = 0;
  bool more = true, started = now.runner->start(*now.batch);
  while (more && started) {
    more = core.scheduler.take_beside(*next.batch);
    if (more && next.batch->runnable.empty()) {  // all of it was dropped: that waits for no device
      core.scheduler.finished(*next.batch, next.runner->run(*next.batch), nullptr);
      continue;
    }
    // Where it cannot be started, it runs when nothing is under way here: it may wait for a place.
    started = more && next.runner->start(*next.batch);
    core.scheduler.finished(*now.batch, now.runner->finish(*now.batch, since), nullptr);
    since = core.clock->now();
    std::swap(now, next);
  }
  if (more) run_batch(core, *now.runner, *now.batch);
}

// A worker that had nothing to do for so long gives its buffers back, if they are larger than that. Those of
// an event loop are small: they hold what takes 100 us.
constexpr Nanos kKeepBuffers = 1'000'000'000;
constexpr std::size_t kSmallBuffers = 256 * 1024;

void work(const std::shared_ptr<EngineCore>& core) {
  step_back();
  // A batch that goes first between two slices, or runs beside another on a device, has buffers of its own.
  BatchRunner second(*core->clock, core->options.on_kernel_error, core->shadow);
  TakenBatch between;
  BatchRunner runner(*core->clock, core->options.on_kernel_error, core->shadow,
                     [&](const TakenBatch& running, std::uint64_t left) {
                       if (core->scheduler.take_between(running, left, between)) {
                         run_batch(*core, second, between);
                       }
                     });
  TakenBatch batch;
  std::size_t counted = 0;  // of these buffers, in buffer_bytes
  for (Nanos idle_at = 0;;) {
    const Scheduler::Wait found = core->scheduler.wait_take(batch, idle_at);
    if (found == Scheduler::Wait::stopped) break;
    if (found == Scheduler::Wait::taken) {
      const BusyScope busy;
      run_ahead(*core, {&runner, &batch}, {&second, &between});
    } else {
      runner.release_buffers();
      second.release_buffers();
    }
    const std::size_t bytes = runner.bytes() + second.bytes();
    if (bytes != counted) {
      core->buffer_bytes.fetch_add(bytes - counted, std::memory_order_relaxed);
      counted = bytes;
    }
    idle_at = bytes > kSmallBuffers ? core->clock->now() + kKeepBuffers : 0;
  }
}

// Workers on which their own engine was destroyed. Never freed: a thread may outlive every static object.
struct Abandoned {
  std::mutex mutex;
  std::vector<std::thread> workers;
};
Abandoned& abandoned() {
  static auto* instance = new Abandoned;
  return *instance;
}

}  // namespace

Engine::Engine(EngineOptions options) : core_(std::make_shared<EngineCore>(std::move(options))) {
  for (unsigned i = 0; i < core_->options.workers; ++i) {
    std::thread& worker = core_->workers.emplace_back([core = core_] { work(core); });
    pthread_setname_np(worker.native_handle(), ("mlp-worker-" + std::to_string(i)).c_str());
  }
}

Engine::~Engine() { stop(); }

std::shared_ptr<Lane> Engine::add_lane(LaneOptions options, std::unique_ptr<Kernel> kernel) {
  std::shared_ptr<Lane> lane(new Lane(std::move(options), std::move(kernel)), FreeLater{});
  core_->scheduler.add(*lane);
  return lane;
}

void Engine::remove_lane(const std::shared_ptr<Lane>& lane) { core_->scheduler.remove(lane); }

std::shared_ptr<Shadow> Engine::add_shadow(std::string name, const std::shared_ptr<Lane>& fused,
                                           const std::shared_ptr<Lane>& unfused, ShadowTime time,
                                           ShadowKind kind, std::shared_ptr<ShadowMetrics> metrics) {
  const LaneOptions &one = fused->options, &other = unfused->options;
  if (one.in_features != other.in_features || one.out_features != other.out_features) {
    throw std::invalid_argument("a shadow of " + name + ": expected rows of the same widths");
  }
  auto shadow = std::make_shared<Shadow>(std::move(name), fused, unfused, time, kind, std::move(metrics));
  core_->shadow.add(shadow);
  fused->shadows.push_back(shadow);
  if (kind == ShadowKind::variants) unfused->shadows.push_back(shadow);
  return shadow;
}

void Engine::set_shadow(Shadow& shadow, double share, double tolerance) {
  const Share wanted(share);
  shadow.tolerance_.store(tolerance, std::memory_order_relaxed);
  // Read before locking: the shadow's own thread may get here while stop() holds the mutex and joins it.
  if (!wanted.none() && !core_->shadow_started) {
    const std::lock_guard lock(core_->stop_mutex);
    if (!core_->shadow_started && !core_->stopped) {
      std::thread& worker = core_->workers.emplace_back([core = core_] { core->shadow.work(); });
      pthread_setname_np(worker.native_handle(), "mlp-shadow");
      core_->shadow_started = true;
    }
  }
  if (!wanted.none()) {
    for (const auto& each : {shadow.first_.lock(), shadow.second_.lock()}) {
      if (!each || (shadow.kind_ == ShadowKind::versions && each != shadow.first_.lock())) continue;
      each->shadow.store(&shadow, std::memory_order_release);
    }
  }
  const bool changed = wanted.fraction() != shadow.share();
  shadow.share_.store(wanted);
  if (changed) core_->shadow.cancel_backoff();
}

Status Engine::submit(Lane& lane, Ref<Ticket>&& ticket) {
  Submission one{&lane, std::move(ticket)};
  core_->scheduler.submit({&one, 1}, nullptr);
  if (one.status != Status::ok) ticket = std::move(one.ticket);
  return one.status;
}

void Engine::begin_drain() { core_->scheduler.begin_drain(); }

bool Engine::wait_idle(std::chrono::nanoseconds timeout) { return core_->scheduler.wait_idle(timeout); }

void Engine::stop() {
  const std::shared_ptr<EngineCore> core = core_;
  {
    BatchRunner runner(*core->clock, core->options.on_kernel_error, core->shadow);
    for (TakenBatch& batch : core->scheduler.stop()) {
      batch.taken_at = core->clock->now();
      core->scheduler.finished(batch, runner.run(batch), nullptr);
    }
  }
  core->shadow.stop();
  const std::lock_guard lock(core->stop_mutex);
  core->stopped = true;
  for (std::thread& worker : core->workers) {
    if (worker.get_id() == std::this_thread::get_id()) {
      // A kernel released the last reference to its engine: its thread cannot join itself. It ends when its
      // batch is complete and keeps the core alive until then.
      const std::lock_guard abandon(abandoned().mutex);
      abandoned().workers.push_back(std::move(worker));
    } else {
      worker.join();
    }
  }
  core->workers.clear();
  if (current_engine != core.get()) core->scheduler.wait_idle();  // batches on event loops
}

void join_abandoned_workers() {
  std::vector<std::thread> workers;
  {
    const std::lock_guard lock(abandoned().mutex);
    workers.swap(abandoned().workers);
  }
  for (std::thread& worker : workers) worker.join();
}

Clock& Engine::clock() const noexcept { return *core_->clock; }
unsigned Engine::workers() const noexcept { return core_->options.workers; }
std::uint64_t Engine::outstanding() const { return core_->scheduler.outstanding(); }
RequestMetrics& Engine::unrouted() noexcept { return core_->unrouted; }

std::size_t Engine::buffer_bytes() const noexcept {
  return core_->buffer_bytes.load(std::memory_order_relaxed);
}

struct InlineRunner::State {
  explicit State(std::shared_ptr<EngineCore> shared)
      : core(std::move(shared)), runner(*core->clock, core->options.on_kernel_error, core->shadow) {
    core->scheduler.open(queue);
  }
  ~State() {
    for (TakenBatch& left : core->scheduler.close(queue)) run_batch(*core, runner, left);
  }

  std::shared_ptr<EngineCore> core;
  BatchRunner runner;
  TakenBatch batch;
  LoopQueue queue;
};

InlineRunner::InlineRunner(Engine& engine) : state_(std::make_unique<State>(engine.core_)) {}

InlineRunner::~InlineRunner() = default;

void InlineRunner::submit(std::span<Submission> list) {
  state_->core->scheduler.submit(list, &state_->queue);
}

bool InlineRunner::run_ready() {
  EngineCore* core = state_->core.get();
  if (!core->scheduler.try_take(state_->batch, state_->queue)) return false;
  run_batch(*core, state_->runner, state_->batch, &state_->queue);
  return true;
}

}  // namespace fused_mlp
