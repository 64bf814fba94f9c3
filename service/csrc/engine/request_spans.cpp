// SPDX-License-Identifier: Apache-2.0
#include "engine/request_spans.hpp"

#include <algorithm>
#include <cmath>
#include <mutex>
#include <random>
#include <utility>

namespace fused_mlp {
namespace {

struct Recorder {
  std::mutex mutex;
  std::vector<RequestSpan> spans;  // guarded by mutex, as is the rest
  std::size_t capacity = 0;
  std::uint64_t dropped = 0;
  // Read without the mutex.
  std::atomic<std::uint64_t> threshold{0};  // trace ids whose low half is below it are sampled
  std::atomic<bool> all{false}, parents_decide{true};
};

// Never freed: a thread may outlive every static object.
Recorder& recorder() {
  static auto* instance = new Recorder;
  return *instance;
}

std::uint64_t random_bits() {
  thread_local std::mt19937_64 random{std::random_device{}() ^ (std::uint64_t{std::random_device{}()} << 32)};
  return random();
}

std::uint64_t new_id() {
  std::uint64_t id = 0;
  while (id == 0) id = random_bits();
  return id;
}

bool sampled(const Recorder& rules, const TraceContext& caller, std::uint64_t trace_low) {
  if (caller.present() && rules.parents_decide.load(std::memory_order_relaxed)) return caller.sampled;
  return rules.all.load(std::memory_order_relaxed) ||
         trace_low < rules.threshold.load(std::memory_order_relaxed);
}

}  // namespace

void RequestSpan::add(const Outcome& outcome, Nanos now) {
  rows = outcome.rows;
  batch_start = start + outcome.queue_ns;
  if (outcome.batch_rows == 0) return;  // dropped while it waited
  batch_end = now;
  compute_end = outcome.computed_at;
  compute_start = outcome.computed_at - outcome.compute_ns;
  batch = outcome.batch;
  batch_rows = outcome.batch_rows;
  strategy = outcome.strategy;
}

void start_sampling(const Sampling& rules) {
  Recorder& all = recorder();
  const std::lock_guard lock(all.mutex);
  all.capacity = rules.capacity;
  all.all.store(rules.ratio >= 1, std::memory_order_relaxed);
  all.threshold.store(
      rules.ratio >= 1 ? 0 : static_cast<std::uint64_t>(std::ldexp(std::max(rules.ratio, 0.0), 64)),
      std::memory_order_relaxed);
  all.parents_decide.store(rules.parents_decide, std::memory_order_relaxed);
  detail::sampling.store(true, std::memory_order_relaxed);
}

void stop_sampling() { detail::sampling.store(false, std::memory_order_relaxed); }

std::unique_ptr<RequestSpan> sample_request(const TraceContext& caller, std::string_view rpc,
                                            Nanos start) noexcept {
  try {
    const std::uint64_t low = caller.present() ? caller.trace_low : new_id();
    if (!sampled(recorder(), caller, low)) return nullptr;
    auto span = std::make_unique<RequestSpan>();
    span->parent = caller;
    if (!caller.present()) span->parent = {new_id(), low, 0, true};
    span->id = new_id();
    span->rpc = rpc;
    span->start = start;
    return span;
  } catch (...) {  // out of memory: lose the span, not the request
    return nullptr;
  }
}

void finish_request(std::unique_ptr<RequestSpan> span) noexcept {
  if (span == nullptr) return;
  Recorder& all = recorder();
  const std::lock_guard lock(all.mutex);
  try {
    if (all.spans.size() < all.capacity) return all.spans.push_back(std::move(*span));
  } catch (...) {
  }
  ++all.dropped;
}

std::vector<RequestSpan> take_request_spans() {
  Recorder& all = recorder();
  std::vector<RequestSpan> taken;
  const std::lock_guard lock(all.mutex);
  try {
    taken.reserve(all.spans.capacity());  // so that no request has to make room again
  } catch (...) {
  }
  taken.swap(all.spans);
  return taken;
}

std::uint64_t dropped_request_spans() {
  Recorder& all = recorder();
  const std::lock_guard lock(all.mutex);
  return all.dropped;
}

}  // namespace fused_mlp
