// SPDX-License-Identifier: Apache-2.0
// All callers that the server knows, and how a call shows which of them makes it. Python reads the files and
// publishes the rules; loops and Python look callers up. Thread-safe.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "access/caller.hpp"
#include "access/sha256.hpp"

namespace fused_mlp {

using CallerRef = std::shared_ptr<const Caller>;
using IpAddress = std::array<std::uint8_t, 16>;  // IPv4 as ::ffff:1.2.3.4

constexpr std::size_t kMaxKeyBytes = 256;  // a longer one is wrong

struct Network {
  IpAddress address{};
  unsigned bits = 128;
  bool contains(const IpAddress& other) const noexcept;
};

// The credentials of a call.
struct Shown {
  std::string_view key = {}, subject = {};
  bool has_key = false, has_subject = false;
};

// Immutable.
class CallerTable {
 public:
  CallerTable() = default;
  CallerTable(std::vector<CallerRef> callers, std::vector<Network> proxies,
              std::vector<std::string> proxy_names);
  // Null: there is none.
  CallerRef find_key(std::string_view key) const;
  CallerRef find_subject(std::string_view subject) const;
  CallerRef find_certificate(const std::vector<std::string>& names) const;
  // Whether that peer may say in a header whom it calls for.
  bool trusts(const IpAddress& address, const std::vector<std::string>& certificate_names) const;
  const std::vector<CallerRef>& callers() const noexcept { return callers_; }

 private:
  std::vector<CallerRef> callers_;
  std::unordered_multimap<std::uint64_t, CallerRef> by_digest_;  // its first 8 bytes
  std::map<std::string, CallerRef, std::less<>> by_certificate_;
  std::vector<std::pair<std::string, CallerRef>> by_subject_;
  std::vector<Network> proxies_;
  std::set<std::string, std::less<>> proxy_names_;
};

// A connection as it is known before it shows a key.
struct Peer {
  Peer() = default;
  Peer(const CallerTable& table, const IpAddress& address, const std::vector<std::string>& certificate_names)
      : address(address),
        proxy(table.trusts(address, certificate_names)),
        has_certificate(!certificate_names.empty()),
        by_certificate(table.find_certificate(certificate_names)) {}
  IpAddress address{};
  bool proxy = false, has_certificate = false;
  CallerRef by_certificate;
};

enum class Known : std::uint8_t { known, nothing_shown, wrong_key, too_many_wrong_keys, expired, not_listed };

struct Identity {
  Known known = Known::nothing_shown;
  CallerRef caller = {};
  std::uint32_t retry_after_ms = 0;
  const char* text() const noexcept;  // to send, unless known
  int grpc_code() const noexcept;
};

// The keys and names that were found lately: most calls of a loop are spared a SHA-256. Only what was found
// is kept, so a flood of wrong keys changes nothing here. One thread at a time.
class FoundCallers {
 public:
  enum class Kind : std::uint8_t { key, subject };
  // Null: not here.
  const CallerRef* find(Kind kind, std::string_view text) const noexcept;
  // Returns a reference with a count of its own: cores do not pass it to each other.
  CallerRef add(Kind kind, std::string_view text, const CallerRef& caller);
  // The rules have changed: looks up again what is here.
  void renew(const CallerTable& table);

 private:
  struct Slot {
    Kind kind = Kind::key;
    std::string text;
    CallerRef caller;  // null: empty
  };
  static std::size_t slot_of(std::string_view text) noexcept;
  std::array<Slot, 512> slots_;
};

class Callers {
 public:
  Callers();
  void publish(std::vector<CallerRules> rules, std::vector<Network> proxies,
               std::vector<std::string> proxy_names);
  std::uint64_t generation() const noexcept { return generation_.load(std::memory_order_acquire); }
  std::shared_ptr<const CallerTable> table() const;
  // `found` may be null. `now_s`: since 1970; `now`: of the steady clock.
  Identity identify(const CallerTable& table, const Shown& shown, const Peer& peer, std::int64_t now_s,
                    Nanos now, FoundCallers* found);

 private:
  Identity identify_key(const CallerTable& table, std::string_view key, const Peer& peer, Nanos now,
                        FoundCallers* found);
  Bucket& wrong_keys_of(const IpAddress& address) noexcept;

  mutable std::mutex mutex_;
  std::shared_ptr<const CallerTable> table_ = std::make_shared<CallerTable>();
  std::map<std::string, std::shared_ptr<CallerUsage>> usages_;  // of the callers in table_
  std::atomic<std::uint64_t> generation_{1};
  // Addresses share them by an unpredictable hash, so that memory is bounded whatever addresses come.
  std::vector<Bucket> wrong_keys_;
  const std::uint64_t seed_;
};

}  // namespace fused_mlp
