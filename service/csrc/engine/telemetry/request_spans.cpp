// SPDX-License-Identifier: Apache-2.0
#include "engine/telemetry/request_spans.hpp"

#include <algorithm>
#include <cmath>
#include <mutex>
#include <random>
#include <unordered_map>
#include <utility>

namespace fused_mlp {
namespace {

struct Recorder {
  std::mutex mutex;
  std::vector<RequestSpan> spans;                       // guarded by mutex, as is the rest
  std::unordered_map<std::uint64_t, std::size_t> held;  // spans by address
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

// Makes room for a span of an address that has `own`, at the cost of the address that has most.
bool give_up_one(Recorder& all, std::size_t own) {
  const auto fewer = [](const auto& a, const auto& b) { return a.second < b.second; };
  const auto most = std::max_element(all.held.begin(), all.held.end(), fewer);
  if (most == all.held.end() || most->second <= own + 1) return false;
  const auto of_most = [&](const RequestSpan& span) { return span.address == most->first; };
  std::swap(*std::find_if(all.spans.begin(), all.spans.end(), of_most), all.spans.back());
  all.spans.pop_back();
  --most->second;
  ++all.dropped;
  return true;
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

std::unique_ptr<RequestSpan> sample_request(const TraceContext& caller, std::string_view rpc, Nanos start,
                                            std::uint64_t address) noexcept {
  try {
    const std::uint64_t low = caller.present() ? caller.trace_low : new_id();
    if (!sampled(recorder(), caller, low)) return nullptr;
    auto span = std::make_unique<RequestSpan>();
    span->parent = caller;
    if (!caller.present()) span->parent = {new_id(), low, 0, true};
    span->id = new_id();
    span->rpc = rpc;
    span->start = start;
    span->address = address;
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
    std::size_t& own = all.held[span->address];
    if (all.spans.size() < all.capacity || give_up_one(all, own)) {
      all.spans.push_back(std::move(*span));
      ++own;
      return;
    }
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
  all.held.clear();
  return taken;
}

std::uint64_t dropped_request_spans() {
  Recorder& all = recorder();
  const std::lock_guard lock(all.mutex);
  return all.dropped;
}

}  // namespace fused_mlp
