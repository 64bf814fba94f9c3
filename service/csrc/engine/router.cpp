#include "engine/router.hpp"

#include <stdexcept>

namespace fused_mlp {

namespace {

Route refuse(Status status, std::string text, Lane* lane = nullptr) {
  Route route;
  route.status = status;
  route.lane = lane;
  route.error = std::move(text);
  return route;
}

std::string label(const RouteEntry& entry) {
  return "model " + quote_name(entry.model) + " version " + std::to_string(entry.version);
}

Lane* lane_of(const RouteEntry& entry, Variant variant) noexcept {
  return (variant == Variant::fused ? entry.fused : entry.unfused).get();
}

bool is_in_split(const RouteEntry& entry, const RouteQuery& query) noexcept {
  if (query.key) return entry.split.contains(*query.key);
  if (!query.request_id.empty()) return entry.split.contains(hash_key(query.request_id));
  return entry.sampler->sample(entry.split);
}

// In order of precedence: withdrawal of fused, the request's variant, the split, the server's variant.
Variant choose_variant(const RouteEntry& entry, const RouteQuery& query) noexcept {
  if (entry.withdrawn) return Variant::unfused;
  if (query.variant != Variant::unspecified) return query.variant;
  if (entry.split.none()) return entry.variant;
  const Variant other = entry.variant == Variant::fused ? Variant::unfused : Variant::fused;
  return lane_of(entry, other) && is_in_split(entry, query) ? other : entry.variant;
}

// Gives each entry that has no sampler the one of its model, creating it if needed.
std::vector<RouteEntry> with_samplers(std::vector<RouteEntry> entries,
                                      std::map<std::string, std::shared_ptr<ShareSampler>> samplers = {}) {
  for (RouteEntry& entry : entries) {
    if (entry.sampler) continue;
    std::shared_ptr<ShareSampler>& sampler = samplers[entry.model];
    if (!sampler) sampler = std::make_shared<ShareSampler>();
    entry.sampler = sampler;
  }
  return entries;
}

std::vector<RouteEntry> with_heads(std::vector<RouteEntry> entries) {
  for (RouteEntry& entry : entries) entry = fused_mlp::with_heads(std::move(entry));
  return entries;
}

}  // namespace

RouteEntry with_heads(RouteEntry entry) {
  if (entry.heads.empty()) entry.heads.push_back({"output", 0, entry.out_features, false});
  std::size_t end = 0;
  for (const Head& head : entry.heads) {
    if (head.begin != end) throw std::invalid_argument(label(entry) + ": outputs are not side by side");
    end += head.width;
  }
  if (end != entry.out_features || entry.heads.size() > kMostHeads) {
    throw std::invalid_argument(label(entry) + ": expected outputs of " + std::to_string(entry.out_features) +
                                " columns in all, at most " + std::to_string(kMostHeads) + " of them");
  }
  return entry;
}

const char* variant_name(Variant variant) noexcept {
  switch (variant) {
    case Variant::fused:
      return "fused";
    case Variant::unfused:
      return "unfused";
    default:
      return "";
  }
}

RouteTable::RouteTable(std::vector<RouteEntry> entries)
    : entries_(with_heads(with_samplers(std::move(entries)))) {
  for (const RouteEntry& entry : entries_) {
    if (!models_[entry.model].versions.emplace(entry.version, &entry).second) {
      throw std::invalid_argument(label(entry) + " is listed twice");
    }
  }
  for (auto& [name, model] : models_) {
    model.preferred = std::prev(model.versions.end())->second;
    for (const auto& [version, entry] : model.versions) {
      if (entry->ready) model.preferred = entry;  // ascending order: ends at the highest that is ready
    }
  }
}

Route RouteTable::resolve(const RouteQuery& query) const {
  const auto model = models_.find(query.model);
  if (model == models_.end()) {
    return refuse(Status::model_not_found, "model " + quote_name(query.model) + " is not served here");
  }
  const RouteEntry* found = model->second.preferred;
  if (query.version != 0) {
    const auto version = model->second.versions.find(query.version);
    if (version == model->second.versions.end()) {
      return refuse(Status::version_not_found, "model " + quote_name(query.model) + " has no version " +
                                                   std::to_string(query.version) + "; the default is " +
                                                   std::to_string(found->version));
    }
    found = version->second;
  }
  const RouteEntry& entry = *found;
  if (!entry.ready) {
    return refuse(
        Status::not_ready,
        label(entry) + (entry.loading ? " is still loading" : " could not be loaded; GetModel says why"));
  }

  // Naming the default variant is not an override.
  if (query.variant != Variant::unspecified && query.variant != entry.variant && !entry.allow_override &&
      !entry.withdrawn) {
    return refuse(Status::override_not_allowed,
                  std::string("variant: this server does not let requests choose '") +
                      variant_name(query.variant) +
                      "'; leave it out, or start the server with FUSED_MLP_ALLOW_OVERRIDE=1",
                  lane_of(entry, entry.variant));
  }
  Route route;
  route.variant = choose_variant(entry, query);
  route.lane = lane_of(entry, route.variant);
  if (!route.lane) {
    return refuse(Status::variant_not_loaded,
                  label(entry) + " has no " + variant_name(route.variant) + " kernel loaded",
                  lane_of(entry, entry.variant));
  }
  route.entry = &entry;
  return route;
}

Router::Router() : table_(std::make_shared<RouteTable>(std::vector<RouteEntry>{})) {}

void Router::publish(std::vector<RouteEntry> entries) {
  std::map<std::string, std::shared_ptr<ShareSampler>> samplers;
  {
    const std::lock_guard lock(mutex_);
    samplers = samplers_;
  }
  std::shared_ptr<const RouteTable> table =
      std::make_shared<RouteTable>(with_samplers(std::move(entries), std::move(samplers)));
  {
    const std::lock_guard lock(mutex_);
    samplers_.clear();
    for (const RouteEntry& entry : table->entries()) samplers_.try_emplace(entry.model, entry.sampler);
    table_.swap(table);
    generation_.fetch_add(1, std::memory_order_release);
  }
  // The old table is destroyed here, outside the lock: that may destroy lanes and kernels.
}

std::shared_ptr<const RouteTable> Router::table() const {
  const std::lock_guard lock(mutex_);
  return table_;
}

}  // namespace fused_mlp
