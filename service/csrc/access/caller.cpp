// SPDX-License-Identifier: Apache-2.0
#include "access/caller.hpp"

#include <algorithm>
#include <utility>

#include "engine/status.hpp"

namespace fused_mlp {
namespace {

constexpr Nanos kQuotaBurst = 1'000'000'000;  // a bucket holds what a second gives
constexpr double kMaxCost = 1e14;             // of one request, in ns: a bound, so that sums cannot overflow
constexpr std::uint32_t kInFlightRetryMs = 10;

Nanos cost_of(double count, double per_s) noexcept {
  return static_cast<Nanos>(std::min(count * 1e9 / per_s, kMaxCost));
}

std::uint32_t whole_ms(Nanos ns) noexcept {
  return static_cast<std::uint32_t>(std::min<Nanos>(ns / 1'000'000 + 1, 3'600'000));
}

}  // namespace

bool matches(std::string_view pattern, std::string_view text) noexcept {
  std::size_t p = 0, t = 0, star = std::string_view::npos, resume = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      resume = t;
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == text[t])) {
      ++p, ++t;
    } else if (star != std::string_view::npos) {  // the star takes one more byte
      p = star + 1;
      t = ++resume;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

Nanos Bucket::take(Nanos cost, Nanos burst, Nanos now) noexcept {
  Nanos full_at = full_at_.load(std::memory_order_relaxed);
  do {
    if (const Nanos left = wait(full_at, cost, burst, now); left != 0) return left;
  } while (
      !full_at_.compare_exchange_weak(full_at, std::max(full_at, now) + cost, std::memory_order_relaxed));
  return 0;
}

Caller::Caller(CallerRules rules, std::shared_ptr<CallerUsage> usage)
    : rules_(std::move(rules)),
      usage_(std::move(usage)),
      all_models_(std::find(rules_.models.begin(), rules_.models.end(), "*") != rules_.models.end()) {}

bool Caller::allows(Action action, std::string_view model) const noexcept {
  if ((rules_.actions & static_cast<std::uint8_t>(action)) == 0) return false;
  if (all_models_ || model.empty()) return all_models_;
  return std::any_of(rules_.models.begin(), rules_.models.end(),
                     [model](const std::string& pattern) { return matches(pattern, model); });
}

Caller::Admission Caller::admit(std::uint32_t rows, Nanos now) const noexcept {
  CallerUsage::Counts& counts = usage_->counts.mine();
  const auto refuse = [&](Quota quota, std::uint32_t retry_after_ms) {
    if (quota != Quota::in_flight && must_release()) release();
    counts.refused[static_cast<std::size_t>(quota)].fetch_add(1, std::memory_order_relaxed);
    return Admission{quota, retry_after_ms};
  };
  if (must_release() && usage_->in_flight.fetch_add(1, std::memory_order_relaxed) >= rules_.max_in_flight) {
    release();
    return refuse(Quota::in_flight, kInFlightRetryMs);
  }
  if (rules_.requests_per_s > 0) {
    const Nanos wait = usage_->requests.take(cost_of(1, rules_.requests_per_s), kQuotaBurst, now);
    if (wait != 0) return refuse(Quota::requests_per_s, whole_ms(wait));
  }
  if (rules_.rows_per_s > 0) {
    const Nanos wait = usage_->rows.take(cost_of(rows, rules_.rows_per_s), kQuotaBurst, now);
    if (wait != 0) return refuse(Quota::rows_per_s, whole_ms(wait));
  }
  counts.requests.fetch_add(1, std::memory_order_relaxed);
  counts.rows.fetch_add(rows, std::memory_order_relaxed);
  return {};
}

std::string Caller::Admission::text(const Caller& caller) const {
  return std::string("quota of caller ") + quote_name(caller.rules().name) +
         " is used up: " + kQuotaNames[static_cast<std::size_t>(refused_by)] + "; retry in " +
         std::to_string(retry_after_ms) + " ms";
}

}  // namespace fused_mlp
