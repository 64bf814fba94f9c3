// SPDX-License-Identifier: Apache-2.0
// One caller: what it may do, and how much. Immutable but for what it has used, which survives a new set of
// rules. Thread-safe.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/clock.hpp"
#include "engine/telemetry/per_thread.hpp"

namespace fused_mlp {

enum class Action : std::uint8_t { predict = 1, describe = 2, admin = 4, metrics = 8 };

struct CallerRules {
  std::string name;
  std::uint8_t actions = 0;
  std::vector<std::string> models;            // patterns: * is any text, ? any byte
  std::int64_t expires_s = 0;                 // since 1970; 0: never
  double requests_per_s = 0, rows_per_s = 0;  // 0: no limit
  std::uint32_t max_in_flight = 0;            // 0: no limit
  double weight = 1;
  // How it is recognised: by the digest of its key, a name in its certificate, a name that a proxy passes on.
  std::string digest = {};  // 32 bytes
  std::vector<std::string> certificates = {};
  std::vector<std::string> subjects = {};  // patterns
};

bool matches(std::string_view pattern, std::string_view text) noexcept;

// A token bucket as the time at which it would be full again.
class Bucket {
 public:
  // How long until `cost` can be taken; 0: now. A full bucket gives any cost, and is in debt afterwards.
  Nanos wait(Nanos cost, Nanos burst, Nanos now) const noexcept {
    return wait(full_at_.load(std::memory_order_relaxed), cost, burst, now);
  }
  Nanos take(Nanos cost, Nanos burst, Nanos now) noexcept;

 private:
  static Nanos wait(Nanos full_at, Nanos cost, Nanos burst, Nanos now) noexcept {
    return full_at <= now || full_at + cost - now <= burst ? 0 : full_at + cost - now - burst;
  }
  std::atomic<Nanos> full_at_{0};
};

// Which limit of a caller refused a request. A closed set: each is a value of a metric label.
enum class Quota : std::uint8_t { none, requests_per_s, rows_per_s, in_flight };
inline constexpr std::array<const char*, 4> kQuotaNames = {"none", "requests_per_s", "rows_per_s",
                                                           "in_flight"};

// The usage of one caller. It survives new rules for the same name.
struct CallerUsage {
  struct Counts {
    std::atomic<std::uint64_t> requests{0}, rows{0}, denied{0};
    std::array<std::atomic<std::uint64_t>, kQuotaNames.size()> refused{};
  };
  Bucket requests, rows;
  std::atomic<std::uint32_t> in_flight{0};
  PerThread<Counts> counts;
};

class Caller {
 public:
  Caller(CallerRules rules, std::shared_ptr<CallerUsage> usage);

  struct Admission {
    Quota refused_by = Quota::none;
    std::uint32_t retry_after_ms = 0;
    std::string text(const Caller& caller) const;
  };
  const CallerRules& rules() const noexcept { return rules_; }
  // `model` empty: all models.
  bool allows(Action action, std::string_view model) const noexcept;
  bool expired(std::int64_t now_s) const noexcept {
    return rules_.expires_s != 0 && now_s >= rules_.expires_s;
  }
  // Takes one request off the quotas, and counts it. One that was admitted is released when it has ended.
  Admission admit(std::uint32_t rows, Nanos now) const noexcept;
  bool must_release() const noexcept { return rules_.max_in_flight != 0; }
  void release() const noexcept { usage_->in_flight.fetch_sub(1, std::memory_order_relaxed); }
  void count_denied() const noexcept { usage_->counts.mine().denied.fetch_add(1, std::memory_order_relaxed); }
  const CallerUsage& usage() const noexcept { return *usage_; }
  // The same for all its connections: callers share a lane fairly.
  std::uint64_t flow() const noexcept { return reinterpret_cast<std::uintptr_t>(usage_.get()); }

 private:
  const CallerRules rules_;
  const std::shared_ptr<CallerUsage> usage_;
  bool all_models_ = false;
};

}  // namespace fused_mlp
