#include "engine/shadow.hpp"

#include <algorithm>
#include <exception>
#include <utility>

#include "engine/background.hpp"
#include "engine/lane.hpp"
#include "engine/scheduler.hpp"

namespace fused_mlp {

namespace {

// An hour, in nanoseconds: the largest of rests, so that no arithmetic runs over.
constexpr double kLongestRest = 3.6e12;

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
  Shadow& shadow = *lane->shadow_;
  if (shadow.waiting_.exchange(true, std::memory_order_acquire)) return count(shadow.metrics_.skipped);
  for (Slot& slot : slots_) {
    int state = Slot::free;
    if (!slot.state.compare_exchange_strong(state, Slot::filling, std::memory_order_acquire)) continue;
    slot.job.shadow = lane->shadow_;
    slot.job.fused_answered = shadow.fused_.lock() == lane;
    slot.job.rows = rows;
    std::swap(slot.job.x, x);
    std::swap(slot.job.y, y);
    slot.state.store(Slot::full, std::memory_order_release);
    offers_.fetch_add(1, std::memory_order_release);
    offers_.notify_one();  // a system call only if it sleeps, and not while it rests
    return;
  }
  shadow.waiting_.store(false, std::memory_order_release);
  count(shadow.metrics_.skipped);
}

void ShadowWorker::work() {
  give_way();
  Job job;
  while (Slot* const slot = wait_for_offer()) {
    const bool quiet = wait_for_quiet();
    std::swap(job, slot->job);
    slot->state.store(Slot::free, std::memory_order_release);
    Shadow& shadow = *job.shadow;
    shadow.waiting_.store(false, std::memory_order_release);
    const Nanos start = clock_.now();
    if (quiet) {
      compare(job);
    } else {
      count(shadow.metrics_.skipped);
    }
    job.shadow.reset();
    rest(quiet ? clock_.now() - start : kLook);  // having looked in vain costs something too
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

void ShadowWorker::end_rest() {
  const std::lock_guard lock(mutex_);
  rests_until_ = 0;
  changed_.notify_all();
}

// Null once stopped and nothing is left.
ShadowWorker::Slot* ShadowWorker::wait_for_offer() {
  while (true) {
    const std::uint32_t seen = offers_.load(std::memory_order_acquire);
    for (std::size_t i = 0; i < kPlaces; ++i) {
      Slot& slot = slots_[(turn_ + i) % kPlaces];
      if (slot.state.load(std::memory_order_acquire) != Slot::full) continue;
      turn_ = (turn_ + i + 1) % kPlaces;
      return &slot;
    }
    if (stopped_) return nullptr;
    offers_.wait(seen, std::memory_order_acquire);
  }
}

// Until a moment without live work: nothing queued, nothing running. Waiting for one costs live traffic
// nothing; running beside it would cost it cache and memory bandwidth, even at the lowest priority.
bool ShadowWorker::wait_for_quiet() {
  const Nanos give_up_at = clock_.now() + kPatience;
  std::unique_lock lock(mutex_);
  while (!stopped_) {
    if (live_.outstanding() == 0) return true;
    const Nanos now = clock_.now();
    if (now >= give_up_at) break;
    clock_.wait_until(changed_, lock, std::min(now + kLook, give_up_at));
  }
  return false;
}

// At work for a part of the time that is no larger than the share of batches: a saturated server has moments
// without live work too, and a comparison costs it some dozens of batches. By the elapsed time, not the
// CPU's: where cores are scarce a thread of the lowest priority takes long, and so the next comparison is far
// away. By the largest share: a model that is compared rarely must not keep one that is compared often
// waiting.
void ShadowWorker::rest(Nanos worked) {
  std::unique_lock lock(mutex_);
  const double share = largest_share();  // under the mutex: a change comes before its end_rest()
  if (share <= 0) return;                // switched off meanwhile
  const double owed = std::min(static_cast<double>(worked) * (1 / share - 1), kLongestRest);
  rests_until_ = clock_.now() + static_cast<Nanos>(owed);
  while (!stopped_ && clock_.now() < rests_until_) clock_.wait_until(changed_, lock, rests_until_);
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
  ShadowMetrics& metrics = shadow->metrics_;
  const std::shared_ptr<Lane> fused = shadow->fused_.lock(), unfused = shadow->unfused_.lock();
  if (!fused || !unfused) return count(metrics.skipped);  // unloaded meanwhile
  const std::size_t out_features = fused->options().out_features;
  Nanos fused_ns = 0, unfused_ns = 0;
  bool ok = false;
  try {
    const std::size_t outputs = job.rows * out_features;
    fused_y_.reserve(outputs);
    unfused_y_.reserve(outputs);
    fused_first_ = !fused_first_;
    stay_on_one_thread();  // both of them: neither takes cores from live traffic, and the times compare
    ok = fused_first_ ? run(*fused, job, fused_y_, fused_ns) && run(*unfused, job, unfused_y_, unfused_ns)
                      : run(*unfused, job, unfused_y_, unfused_ns) && run(*fused, job, fused_y_, fused_ns);
  } catch (const std::exception&) {  // no memory for the outputs
  }
  if (!ok) return count(metrics.failed);
  // What was answered is judged, not what came out just now.
  const Difference difference = compare_outputs((job.fused_answered ? job.y : fused_y_).data().get(),
                                                (job.fused_answered ? unfused_y_ : job.y).data().get(),
                                                job.rows, out_features, shadow->scale_);
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
  const bool cpu = lane.shadow_->time_ == ShadowTime::cpu;
  const Nanos start = cpu ? clock_.thread_cpu() : clock_.now();
  lane.kernel_->run(job.x, job.rows, y, result);
  took = std::max<Nanos>(0, (cpu ? clock_.thread_cpu() : clock_.now()) - start);
  if (result.failed && hooks_.on_error)
    hooks_.on_error(lane, "in the shadow, no caller saw it: " + result.error);
  return !result.failed;
}

}  // namespace fused_mlp
