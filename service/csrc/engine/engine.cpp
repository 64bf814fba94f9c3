#include "engine/engine.hpp"

#include <pthread.h>

#include <string>
#include <thread>

#include "engine/batch_run.hpp"
#include "engine/scheduler.hpp"

namespace fused_mlp {

// Shared by the engine, its workers and the inline runners: whoever goes last takes it along.
class EngineCore {
 public:
  explicit EngineCore(EngineOptions given)
      : options(std::move(given)),
        clock(options.clock ? options.clock : std::make_shared<SteadyClock>()),
        scheduler(*clock) {}

  EngineOptions options;
  std::shared_ptr<Clock> clock;
  Scheduler scheduler;
  RequestMetrics unrouted;
  std::mutex stop_mutex;
  std::vector<std::thread> workers;  // guarded by stop_mutex
};

namespace {

void work(const std::shared_ptr<EngineCore>& core) {
  BatchRun runner(*core->clock, core->options.on_kernel_error);
  TakenBatch batch;
  while (core->scheduler.wait_take(batch)) core->scheduler.finished(runner.run(batch));
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
  auto lane = std::make_shared<Lane>(std::move(options), std::move(kernel));
  core_->scheduler.add(lane);
  return lane;
}

void Engine::remove_lane(const std::shared_ptr<Lane>& lane) { core_->scheduler.retire(lane); }

std::vector<std::shared_ptr<Lane>> Engine::lanes() const { return core_->scheduler.lanes(); }

Status Engine::submit(Lane& lane, Ref<Ticket>&& ticket, Wake wake) {
  return core_->scheduler.submit(lane, std::move(ticket), wake);
}

void Engine::begin_drain() { core_->scheduler.begin_drain(); }

bool Engine::draining() const noexcept { return core_->scheduler.draining(); }

bool Engine::wait_idle(std::chrono::nanoseconds timeout) { return core_->scheduler.wait_idle(timeout); }

void Engine::stop() {
  const std::shared_ptr<EngineCore> core = core_;
  {
    BatchRun runner(*core->clock, core->options.on_kernel_error);
    for (TakenBatch& batch : core->scheduler.stop()) {
      batch.taken_at = core->clock->now();
      core->scheduler.finished(runner.run(batch));
    }
  }
  const std::lock_guard lock(core->stop_mutex);
  bool on_worker = false;
  for (std::thread& worker : core->workers) {
    // A kernel may drop the last reference to its engine: that thread cannot wait for itself. It ends by
    // itself once its batch is complete, and holds the core until then.
    const bool self = worker.get_id() == std::this_thread::get_id();
    on_worker = on_worker || self;
    self ? worker.detach() : worker.join();
  }
  core->workers.clear();
  if (!on_worker) core->scheduler.wait_idle();  // batches on event loops
}

Clock& Engine::clock() const noexcept { return *core_->clock; }
unsigned Engine::workers() const noexcept { return core_->options.workers; }
std::uint64_t Engine::outstanding() const { return core_->scheduler.outstanding(); }
RequestMetrics& Engine::unrouted() noexcept { return core_->unrouted; }

struct InlineRunner::State {
  State(std::shared_ptr<EngineCore> shared, bool share)
      : core(std::move(shared)), runner(*core->clock, core->options.on_kernel_error), share_backlog(share) {}

  std::shared_ptr<EngineCore> core;
  BatchRun runner;
  TakenBatch batch;
  bool share_backlog;
};

InlineRunner::InlineRunner(Engine& engine, Backlog backlog)
    : state_(std::make_unique<State>(engine.core_, backlog == Backlog::share)) {}

InlineRunner::~InlineRunner() = default;

bool InlineRunner::run_ready() {
  Scheduler& scheduler = state_->core->scheduler;
  if (!scheduler.try_take(state_->batch, state_->share_backlog)) return false;
  scheduler.finished(state_->runner.run(state_->batch));
  return true;
}

}  // namespace fused_mlp
