// SPDX-License-Identifier: Apache-2.0
#include "access/callers.hpp"

#include <algorithm>
#include <cstring>
#include <random>

#include "engine/route/share.hpp"

namespace fused_mlp {
namespace {

constexpr std::size_t kAddressSlots = 1u << 14;
// Wrong keys of one address: so many at once, then one a second.
constexpr Nanos kWrongKeyCost = 1'000'000'000, kWrongKeyBurst = 50 * kWrongKeyCost;
constexpr std::size_t kAddressPrefix = 8;  // of IPv6: a host has all addresses that begin so

std::string_view as_text(const Digest& digest) {
  return {reinterpret_cast<const char*>(digest.data()), digest.size()};
}

std::uint64_t first_bytes(std::string_view digest) {
  std::uint64_t value;
  std::memcpy(&value, digest.data(), sizeof value);
  return value;
}

bool is_ipv4(const IpAddress& address) {
  return std::all_of(address.begin(), address.begin() + 10, [](std::uint8_t byte) { return byte == 0; });
}

}  // namespace

bool Network::contains(const IpAddress& other) const noexcept {
  const std::size_t whole = bits / 8;
  if (std::memcmp(address.data(), other.data(), whole) != 0) return false;
  const unsigned rest = bits % 8;
  return rest == 0 || (address[whole] ^ other[whole]) >> (8 - rest) == 0;
}

// ---- The table ----

CallerTable::CallerTable(std::vector<CallerRef> callers, std::vector<Network> proxies,
                         std::vector<std::string> proxy_names)
    : callers_(std::move(callers)),
      proxies_(std::move(proxies)),
      proxy_names_(std::make_move_iterator(proxy_names.begin()), std::make_move_iterator(proxy_names.end())) {
  for (const CallerRef& caller : callers_) {
    const CallerRules& rules = caller->rules();
    if (rules.digest.size() == sizeof(Digest)) by_digest_.emplace(first_bytes(rules.digest), caller);
    for (const std::string& name : rules.certificates) by_certificate_.emplace(name, caller);
    for (const std::string& pattern : rules.subjects) by_subject_.emplace_back(pattern, caller);
  }
}

// Finding by the digest's first bytes tells a guesser nothing: it cannot choose a key by its digest.
CallerRef CallerTable::find_key(std::string_view key) const {
  const Digest digest = sha256(key);
  const auto [begin, end] = by_digest_.equal_range(first_bytes(as_text(digest)));
  for (auto each = begin; each != end; ++each) {
    if (same_bytes(each->second->rules().digest, as_text(digest))) return each->second;
  }
  return nullptr;
}

CallerRef CallerTable::find_subject(std::string_view subject) const {
  for (const auto& [pattern, caller] : by_subject_) {
    if (matches(pattern, subject)) return caller;
  }
  return nullptr;
}

CallerRef CallerTable::find_certificate(const std::vector<std::string>& names) const {
  for (const std::string& name : names) {
    if (const auto found = by_certificate_.find(name); found != by_certificate_.end()) return found->second;
  }
  return nullptr;
}

bool CallerTable::trusts(const IpAddress& address, const std::vector<std::string>& certificate_names) const {
  return std::any_of(proxies_.begin(), proxies_.end(),
                     [&](const Network& network) { return network.contains(address); }) ||
         std::any_of(certificate_names.begin(), certificate_names.end(),
                     [this](const std::string& name) { return proxy_names_.contains(name); });
}

// ---- What was found lately ----

std::size_t FoundCallers::slot_of(std::string_view text) noexcept {
  return hash_key(text) % std::tuple_size_v<decltype(slots_)>;
}

const CallerRef* FoundCallers::find(Kind kind, std::string_view text) const noexcept {
  const Slot& slot = slots_[slot_of(text)];
  const bool same = slot.caller != nullptr && slot.kind == kind && same_bytes(slot.text, text);
  return same ? &slot.caller : nullptr;
}

CallerRef FoundCallers::add(Kind kind, std::string_view text, const CallerRef& caller) {
  Slot& slot = slots_[slot_of(text)];
  slot.caller = nullptr;  // if what follows throws, the slot is empty
  slot.text = text;
  slot.kind = kind;
  slot.caller = CallerRef(std::make_shared<const CallerRef>(caller), caller.get());
  return slot.caller;
}

void FoundCallers::renew(const CallerTable& table) {
  for (Slot& slot : slots_) {
    if (slot.caller == nullptr) continue;
    const std::string text = slot.text;
    const CallerRef caller = slot.kind == Kind::key ? table.find_key(text) : table.find_subject(text);
    slot.caller = nullptr;
    if (caller != nullptr) add(slot.kind, text, caller);
  }
}

// ---- All of them ----

Callers::Callers()
    : wrong_keys_(kAddressSlots),
      seed_(std::random_device{}() | std::uint64_t{std::random_device{}()} << 32) {}

void Callers::publish(std::vector<CallerRules> rules, std::vector<Network> proxies,
                      std::vector<std::string> proxy_names) {
  const std::lock_guard lock(mutex_);
  std::map<std::string, std::shared_ptr<CallerUsage>> usages;
  std::vector<CallerRef> callers;
  for (CallerRules& each : rules) {
    const auto before = usages_.find(each.name);
    auto& usage =
        usages.try_emplace(each.name, before == usages_.end() ? nullptr : before->second).first->second;
    if (usage == nullptr) usage = std::make_shared<CallerUsage>();
    callers.push_back(std::make_shared<const Caller>(std::move(each), usage));
  }
  table_ =
      std::make_shared<const CallerTable>(std::move(callers), std::move(proxies), std::move(proxy_names));
  usages_ = std::move(usages);
  generation_.fetch_add(1, std::memory_order_release);
}

std::shared_ptr<const CallerTable> Callers::table() const {
  const std::lock_guard lock(mutex_);
  return table_;
}

Identity Callers::identify(const CallerTable& table, const Shown& shown, const Peer& peer, std::int64_t now_s,
                           Nanos now, FoundCallers* found) {
  Identity identity;
  if (peer.proxy && shown.has_subject) {
    const CallerRef* const lately =
        found != nullptr ? found->find(FoundCallers::Kind::subject, shown.subject) : nullptr;
    identity.caller = lately != nullptr ? *lately : table.find_subject(shown.subject);
    if (identity.caller == nullptr) return {Known::not_listed};
    if (lately == nullptr && found != nullptr) {
      identity.caller = found->add(FoundCallers::Kind::subject, shown.subject, identity.caller);
    }
  } else if (shown.has_key) {
    identity = identify_key(table, shown.key, peer, now, found);
  } else if (peer.has_certificate) {
    identity.known = Known::not_listed;
  }
  if (identity.caller == nullptr) identity.caller = peer.by_certificate;
  if (identity.caller == nullptr) return identity;
  identity.known = Known::known;
  if (identity.caller->expired(now_s)) return {Known::expired};
  return identity;
}

Identity Callers::identify_key(const CallerTable& table, std::string_view key, const Peer& peer, Nanos now,
                               FoundCallers* found) {
  if (found != nullptr) {
    if (const CallerRef* const lately = found->find(FoundCallers::Kind::key, key))
      return {Known::known, *lately};
  }
  if (CallerRef caller = key.size() <= kMaxKeyBytes ? table.find_key(key) : nullptr) {
    return {Known::known,
            found != nullptr ? found->add(FoundCallers::Kind::key, key, caller) : std::move(caller)};
  }
  // Only wrong keys have to wait: other callers may have the same address. All callers behind a proxy have
  // its address, so it never waits.
  if (peer.proxy) return {Known::wrong_key};
  Bucket& wrong = wrong_keys_of(peer.address);
  if (const Nanos wait = wrong.wait(kWrongKeyCost, kWrongKeyBurst, now); wait != 0) {
    return {Known::too_many_wrong_keys, nullptr, static_cast<std::uint32_t>(wait / 1'000'000 + 1)};
  }
  wrong.take(kWrongKeyCost, kWrongKeyBurst, now);
  return {Known::wrong_key};
}

Bucket& Callers::wrong_keys_of(const IpAddress& address) noexcept {
  std::array<char, sizeof seed_ + sizeof(IpAddress)> text{};
  std::memcpy(text.data(), &seed_, sizeof seed_);
  std::memcpy(text.data() + sizeof seed_, address.data(), is_ipv4(address) ? address.size() : kAddressPrefix);
  return wrong_keys_[hash_key({text.data(), text.size()}) % kAddressSlots];
}

// ---- What a caller is told ----

namespace {

struct KnownRow {
  int code;  // google.rpc.Code
  const char* text;
};
// In the order of Known.
constexpr KnownRow kKnown[] = {
    {0, ""},
    {16,
     "expected a key (authorization: Bearer KEY, or x-api-key: KEY), or a certificate, of a caller that is "
     "listed"},
    {16, "expected a key of a caller that is listed, got another one"},
    {8, "too many wrong keys came from this address; retry later"},
    {16, "this caller has expired; ask for a new key"},
    {7, "this caller is not listed"},
};

}  // namespace

const char* Identity::text() const noexcept { return kKnown[static_cast<std::size_t>(known)].text; }
int Identity::grpc_code() const noexcept { return kKnown[static_cast<std::size_t>(known)].code; }

}  // namespace fused_mlp
