#include "engine/shadow.hpp"

#include <sched.h>
#include <sys/resource.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "engine/lane.hpp"
#include "engine/scheduler.hpp"

namespace fused_mlp {

namespace {

// Last in line for a core, and never preempting whoever has one. Not SCHED_IDLE: an unfused kernel holds the
// GIL between its operations, and a thread that may starve must not hold what live Python needs.
void take_lowest_priority() noexcept {
  const sched_param none{};
  [[maybe_unused]] const int batch = sched_setscheduler(0, SCHED_BATCH, &none);
  [[maybe_unused]] const int nice = setpriority(PRIO_PROCESS, 0, 19);  // of this thread alone, on Linux
}

void raise_to(std::atomic<double>& gauge, double value) noexcept {
  if (value > gauge.load(std::memory_order_relaxed)) gauge.store(value, std::memory_order_relaxed);
}

void count(std::atomic<std::uint64_t>& counter, std::uint64_t by = 1) noexcept {
  counter.fetch_add(by, std::memory_order_relaxed);
}

}  // namespace

ShadowWorker::ShadowWorker(Clock& clock, const Scheduler& live, ShadowHooks hooks)
    : clock_(clock), live_(live), hooks_(std::move(hooks)) {
  clock_.subscribe(this, [this] {
    const std::lock_guard lock(mutex_);
    changed_.notify_all();
  });
}

ShadowWorker::~ShadowWorker() { clock_.unsubscribe(this); }

void ShadowWorker::offer(const std::shared_ptr<Lane>& lane, std::size_t rows, BatchBuffer& x,
                         BatchBuffer& y) noexcept {
  for (Slot& slot : slots_) {
    int state = Slot::free;
    if (!slot.state.compare_exchange_strong(state, Slot::filling, std::memory_order_acquire)) continue;
    slot.job.lane = lane;
    slot.job.rows = rows;
    std::swap(slot.job.x, x);
    std::swap(slot.job.y, y);
    slot.job.give_up_at = clock_.now() + kPatience;
    slot.state.store(Slot::full, std::memory_order_release);
    offers_.fetch_add(1, std::memory_order_release);
    offers_.notify_one();  // a system call only if it sleeps
    return;
  }
  count(lane->shadow_->metrics_.skipped);
}

void ShadowWorker::work() {
  take_lowest_priority();
  Job job;
  while (take(job)) {
    compare(job);
    job.lane.reset();
  }
}

void ShadowWorker::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    changed_.notify_all();
  }
  offers_.fetch_add(1);
  offers_.notify_all();
}

bool ShadowWorker::take(Job& job) {
  while (true) {
    const std::uint32_t seen = offers_.load(std::memory_order_acquire);
    const auto slot = std::find_if(slots_.begin(), slots_.end(), [](const Slot& each) {
      return each.state.load(std::memory_order_acquire) == Slot::full;
    });
    if (slot == slots_.end()) {
      if (stopped_) return false;
      offers_.wait(seen, std::memory_order_acquire);
      continue;
    }
    const bool quiet = wait_for_quiet(slot->job.give_up_at);
    std::swap(job, slot->job);
    slot->state.store(Slot::free, std::memory_order_release);
    if (quiet) return true;
    count(job.lane->shadow_->metrics_.skipped);
    job.lane.reset();
  }
}

// Until a moment without live work: nothing queued, nothing running. Waiting for one costs live traffic
// nothing; running beside it would cost it cache and memory bandwidth, even at the lowest priority.
bool ShadowWorker::wait_for_quiet(Nanos give_up_at) {
  std::unique_lock lock(mutex_);
  while (!stopped_) {
    if (live_.outstanding() == 0) return true;
    const Nanos now = clock_.now();
    if (now >= give_up_at) break;
    clock_.wait_until(changed_, lock, std::min(now + kLook, give_up_at));
  }
  return false;
}

void ShadowWorker::compare(Job& job) noexcept {
  const std::shared_ptr<Shadow> shadow = job.lane->shadow_;
  ShadowMetrics& metrics = shadow->metrics_;
  const std::shared_ptr<Lane> fused = shadow->fused_.lock(), unfused = shadow->unfused_.lock();
  if (!fused || !unfused) return count(metrics.skipped);  // unloaded meanwhile
  Nanos fused_ns = 0, unfused_ns = 0;
  bool ok = false;
  try {
    const std::size_t outputs = job.rows * job.lane->options().out_features;
    fused_y_.reserve(outputs);
    unfused_y_.reserve(outputs);
    fused_first_ = !fused_first_;
    ok = fused_first_ ? run(*fused, job, fused_y_, fused_ns) && run(*unfused, job, unfused_y_, unfused_ns)
                      : run(*unfused, job, unfused_y_, unfused_ns) && run(*fused, job, fused_y_, fused_ns);
  } catch (const std::exception&) {  // no memory for the outputs
  }
  if (!ok) return count(metrics.failed);
  // What was answered is judged, not what came out just now.
  const bool answered_fused = job.lane == fused;
  const Difference difference = compare_outputs((answered_fused ? job.y : fused_y_).data().get(),
                                                (answered_fused ? unfused_y_ : job.y).data().get(), job.rows,
                                                job.lane->options().out_features, shadow->scale_);
  metrics.fused.observe(fused_ns);
  metrics.unfused.observe(unfused_ns);
  raise_to(metrics.max_absolute, difference.absolute);
  raise_to(metrics.max_relative, difference.relative);
  count(metrics.rows, job.rows);
  const bool mismatch = difference.relative > shadow->tolerance();
  if (mismatch) count(metrics.mismatches);
  if (mismatch && hooks_.on_mismatch && shadow->armed_.exchange(false, std::memory_order_relaxed)) {
    hooks_.on_mismatch(shadow, difference);
  }
  count(metrics.compared);  // last: whoever sees it sees the rest
}

bool ShadowWorker::run(const Lane& lane, const Job& job, const BatchBuffer& y, Nanos& took) noexcept {
  KernelResult result;
  const Nanos start = clock_.now();
  lane.kernel_->run(job.x, job.rows, y, result);
  took = std::max<Nanos>(0, clock_.now() - start);
  if (result.failed && hooks_.on_error)
    hooks_.on_error(lane, "in the shadow, no caller saw it: " + result.error);
  return !result.failed;
}

}  // namespace fused_mlp
