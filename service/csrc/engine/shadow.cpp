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
  {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock.owns_lock() || stopped_ || count_ == kQueue) return count(lane->shadow_->metrics_.skipped);
    Job& job = jobs_[(first_ + count_) % kQueue];
    job.lane = lane;
    job.rows = rows;
    std::swap(job.x, x);
    std::swap(job.y, y);
    job.give_up_at = clock_.now() + kPatience;
    if (++count_ > 1) return;  // it is awake, or has its alarm set
  }
  changed_.notify_one();
}

void ShadowWorker::work() {
  take_lowest_priority();
  Job job;
  while (take(job)) {
    compare(job);
    job.lane.reset();
  }
  const std::lock_guard lock(mutex_);
  for (Job& left : jobs_) left = Job();  // nobody offers any more
}

void ShadowWorker::stop() {
  const std::lock_guard lock(mutex_);
  stopped_ = true;
  changed_.notify_all();
}

// The next batch, at a moment without live work: nothing queued, nothing running. Waiting for one costs live
// traffic nothing, running beside it would cost it cache and memory bandwidth even at the lowest priority.
bool ShadowWorker::take(Job& taken) {
  std::unique_lock lock(mutex_);
  while (!stopped_) {
    if (count_ == 0) {
      clock_.wait_until(changed_, lock, 0);
      continue;
    }
    Job& job = jobs_[first_];
    const bool busy = live_.outstanding() != 0;
    const Nanos now = clock_.now();
    if (busy && now < job.give_up_at) {
      clock_.wait_until(changed_, lock, std::min(now + kLook, job.give_up_at));
      continue;
    }
    std::swap(taken, job);
    first_ = (first_ + 1) % kQueue;
    --count_;
    if (!busy) return true;
    count(taken.lane->shadow_->metrics_.skipped);
    lock.unlock();
    taken.lane.reset();  // perhaps the last reference to it
    lock.lock();
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
  count(metrics.compared);
  if (mismatch && hooks_.on_mismatch && shadow->armed_.exchange(false, std::memory_order_relaxed)) {
    hooks_.on_mismatch(shadow, difference);
  }
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
