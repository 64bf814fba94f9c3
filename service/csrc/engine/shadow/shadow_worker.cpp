// SPDX-License-Identifier: Apache-2.0
#include "engine/shadow/shadow_worker.hpp"

#include <algorithm>
#include <cmath>
#include <exception>
#include <utility>

#include "engine/run/background.hpp"
#include "engine/schedule/lane.hpp"
#include "engine/schedule/scheduler.hpp"

namespace fused_mlp {

namespace {

// One hour: a bound, so that the arithmetic cannot overflow.
constexpr double kMaxBackoffNs = 3.6e12;

void raise_to(std::atomic<double>& gauge, double value) noexcept {
  if (value > gauge.load(std::memory_order_relaxed)) gauge.store(value, std::memory_order_relaxed);
}

void count(std::atomic<std::uint64_t>& counter, std::uint64_t by = 1) noexcept {
  counter.fetch_add(by, std::memory_order_relaxed);
}

}  // namespace

ShadowWorker::ShadowWorker(Clock& clock, const Scheduler& scheduler, ShadowHooks hooks)
    : clock_(clock), scheduler_(scheduler), hooks_(std::move(hooks)) {
  clock_.subscribe(this, [this] {
    const std::lock_guard lock(mutex_);
    changed_.notify_all();
  });
}

ShadowWorker::~ShadowWorker() { clock_.unsubscribe(this); }

ShadowWorker::Slot* ShadowWorker::claim_slot(Shadow& shadow) noexcept {
  if (!shadow.has_slot_.exchange(true, std::memory_order_acquire)) {
    for (Slot& slot : slots_) {
      int state = Slot::free;
      if (slot.state.compare_exchange_strong(state, Slot::filling, std::memory_order_acquire)) return &slot;
    }
    shadow.has_slot_.store(false, std::memory_order_release);
  }
  count(shadow.metrics_->skipped);
  return nullptr;
}

void ShadowWorker::Offer::make(const std::shared_ptr<Lane>& lane, std::size_t rows) noexcept {
  Job& job = slot_->job;
  job.shadow = shadow_.shared_from_this();
  job.epoch = shadow_.epoch();
  job.first_answered = shadow_.first_.lock() == lane;
  job.rows = rows;
  std::exchange(slot_, nullptr)->state.store(Slot::full, std::memory_order_release);
  worker_.offers_.fetch_add(1, std::memory_order_release);
  worker_.offers_.notify_one();  // a system call only if the worker waits for an offer
}

ShadowWorker::Offer::~Offer() {
  if (slot_ == nullptr) return;
  slot_->state.store(Slot::free, std::memory_order_release);
  shadow_.has_slot_.store(false, std::memory_order_release);
  count(shadow_.metrics_->skipped);
}

void ShadowWorker::work() {
  lower_thread_priority();
  Job job;
  while (Slot* const slot = wait_for_offer()) {
    const bool idle = wait_for_idle_engine();
    std::swap(job, slot->job);
    slot->state.store(Slot::free, std::memory_order_release);
    Shadow& shadow = *job.shadow;
    shadow.has_slot_.store(false, std::memory_order_release);
    const Nanos start = clock_.now();
    if (idle) {
      compare(job);
    } else {
      count(shadow.metrics_->skipped);
    }
    job.shadow.reset();
    back_off(idle ? clock_.now() - start : kPoll);  // polling a busy engine counts as work too
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

void ShadowWorker::add(const std::shared_ptr<Shadow>& shadow) {
  const std::lock_guard lock(mutex_);
  std::erase_if(shadows_, [](const std::weak_ptr<Shadow>& each) { return each.expired(); });
  shadows_.push_back(shadow);
}

void ShadowWorker::cancel_backoff() {
  const std::lock_guard lock(mutex_);
  backoff_until_ = 0;
  changed_.notify_all();
}

// Returns null once stopped and all slots are empty.
ShadowWorker::Slot* ShadowWorker::wait_for_offer() {
  while (true) {
    const std::uint32_t seen = offers_.load(std::memory_order_acquire);
    for (std::size_t i = 0; i < kSlots; ++i) {
      Slot& slot = slots_[(next_slot_ + i) % kSlots];
      if (slot.state.load(std::memory_order_acquire) != Slot::full) continue;
      next_slot_ = (next_slot_ + i + 1) % kSlots;
      return &slot;
    }
    if (stopped_) return nullptr;
    offers_.wait(seen, std::memory_order_acquire);
  }
}

// Waits until no ticket is queued or running. Even at the lowest priority, a comparison beside live traffic
// would take cache and memory bandwidth from it. False if the engine stayed busy for kMaxWait.
bool ShadowWorker::wait_for_idle_engine() {
  const Nanos give_up_at = clock_.now() + kMaxWait;
  std::unique_lock lock(mutex_);
  while (!stopped_) {
    if (scheduler_.outstanding() == 0) return true;
    const Nanos now = clock_.now();
    if (now >= give_up_at) break;
    clock_.wait_until(changed_, lock, std::min(now + kPoll, give_up_at));
  }
  return false;
}

// Limits the time spent on comparisons to the largest share: even a saturated server is idle for moments, and
// a comparison takes as long as dozens of batches. Counts elapsed time, not CPU time: if cores are scarce, a
// low-priority thread takes longer and so backs off for longer. Uses the largest share so that a model with a
// small share does not delay the others.
void ShadowWorker::back_off(Nanos worked) {
  std::unique_lock lock(mutex_);
  const double share = largest_share();  // with the mutex held: a later change calls cancel_backoff()
  if (share <= 0) return;                // switched off in the meantime
  const double backoff = std::min(static_cast<double>(worked) * (1 / share - 1), kMaxBackoffNs);
  backoff_until_ = clock_.now() + static_cast<Nanos>(backoff);
  while (!stopped_ && clock_.now() < backoff_until_) clock_.wait_until(changed_, lock, backoff_until_);
}

double ShadowWorker::largest_share() {
  double largest = 0;
  for (const std::weak_ptr<Shadow>& each : shadows_) {
    if (const std::shared_ptr<Shadow> shadow = each.lock()) largest = std::max(largest, shadow->share());
  }
  return largest;
}

void ShadowWorker::compare(Job& job) noexcept {
  const std::shared_ptr<Shadow>& shadow = job.shadow;
  ShadowMetrics& metrics = *shadow->metrics_;
  const std::shared_ptr<Lane> fused = shadow->first_.lock(), unfused = shadow->second_.lock();
  if (!fused || !unfused) return count(metrics.skipped);  // unloaded in the meantime
  const std::size_t out_features = fused->options.out_features;
  Nanos fused_ns = 0, unfused_ns = 0;
  bool ok = false;
  try {
    const std::size_t outputs = job.rows * out_features;
    fused_y_.reserve(outputs);
    unfused_y_.reserve(outputs);
    fused_first_ = !fused_first_;
    limit_openmp_to_one_thread();  // live traffic keeps the other cores, and both kernels are timed alike
    ok = fused_first_ ? run(*fused, job, fused_y_, fused_ns) && run(*unfused, job, unfused_y_, unfused_ns)
                      : run(*unfused, job, unfused_y_, unfused_ns) && run(*fused, job, fused_y_, fused_ns);
  } catch (const std::exception&) {  // out of memory
  }
  if (!ok) return count(metrics.failed);
  metrics.fused.observe(fused_ns);
  metrics.unfused.observe(unfused_ns);
  count(metrics.rows, job.rows);
  if (shadow->kind_ == ShadowKind::versions) return compare_versions(job, out_features);
  // Compares the output that was sent, not the one computed again.
  const float* const fused_y = (job.first_answered ? job.y : fused_y_).data().get();
  const float* const unfused_y = (job.first_answered ? unfused_y_ : job.y).data().get();
  const Difference difference =
      compare_outputs(fused_y, unfused_y, job.rows, out_features, shadow->scale_, shadow->tolerance());
  raise_to(metrics.max_absolute, difference.absolute);
  raise_to(metrics.max_relative, difference.relative);
  if (!difference.disputed().empty()) {
    count(metrics.disputed);
    try {
      report(job, *fused, fused_y, unfused_y, difference);
    } catch (const std::exception&) {  // out of memory
      shadow->record(Verdict::not_judged);
    }
  }
  count(metrics.compared);  // last, so that a reader that sees it sees the other counters updated
}

// How the outputs of the arm that shadows differ from those that were sent.
void ShadowWorker::compare_versions(const Job& job, std::size_t out_features) noexcept {
  Shadow& shadow = *job.shadow;
  ShadowMetrics& metrics = *shadow.metrics_;
  const float* const sent = job.y.data().get();
  const float* const other = unfused_y_.data().get();
  const Difference whole = compare_outputs(other, sent, job.rows, out_features, shadow.scale_, 0);
  raise_to(metrics.max_absolute, whole.absolute);
  raise_to(metrics.max_relative, whole.relative);
  for (std::size_t row = 0; row < job.rows; ++row) {
    const std::size_t at = row * out_features;
    const RowDifference found = compare_row(other + at, sent + at, out_features, shadow.scale_.typical());
    const auto bucket = std::lower_bound(kDifferenceBounds.begin(), kDifferenceBounds.end(), found.relative);
    count(metrics.differences[static_cast<std::size_t>(bucket - kDifferenceBounds.begin())]);
    if (std::isfinite(found.relative)) metrics.difference_sum += found.relative;
    if (found.top1_changed) count(metrics.top1_changes);
  }
  count(metrics.compared);  // last, as above
}

void ShadowWorker::report(const Job& job, const Lane& fused, const float* fused_y, const float* unfused_y,
                          const Difference& difference) {
  if (!hooks_.on_dispute) return;
  const std::size_t in = fused.options.in_features, out = fused.options.out_features;
  const auto append = [](std::vector<float>& to, const float* from, std::size_t row, std::size_t width) {
    to.insert(to.end(), from + row * width, from + (row + 1) * width);
  };
  Dispute dispute;
  dispute.difference = difference;
  dispute.epoch = job.epoch;
  for (const std::size_t row : difference.disputed()) {
    if (!dispute.x.empty() &&
        dispute.x.size() + 2 * dispute.fused.size() + in + 2 * out > Dispute::kMaxFloats)
      break;
    append(dispute.x, job.x.data().get(), row, in);
    append(dispute.fused, fused_y, row, out);
    append(dispute.unfused, unfused_y, row, out);
  }
  hooks_.on_dispute(job.shadow, dispute);
}

bool ShadowWorker::run(const Lane& lane, const Job& job, const BatchBuffer& y, Nanos& took) {
  KernelResult result;
  const bool cpu = job.shadow->time_ == ShadowTime::cpu;
  const Nanos start = cpu ? clock_.thread_cpu() : clock_.now();
  lane.kernel->run(job.x, 0, job.rows, y, result);
  took = std::max<Nanos>(0, (cpu ? clock_.thread_cpu() : clock_.now()) - start);
  if (result.failed && hooks_.on_error)
    hooks_.on_error(lane, "in a shadow comparison, no request was affected: " + result.error);
  return !result.failed;
}

}  // namespace fused_mlp
