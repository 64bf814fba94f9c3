#include "engine/router.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <stdexcept>
#include <utility>

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

std::map<std::string, std::vector<RouteEntry>> by_model(std::vector<RouteEntry> entries) {
  std::map<std::string, std::vector<RouteEntry>> models;
  for (RouteEntry& entry : entries) {
    std::string name = entry.model;  // before the entry is moved
    models[std::move(name)].push_back(with_heads(std::move(entry)));
  }
  return models;
}

std::size_t hash_of(std::string_view name) noexcept { return std::hash<std::string_view>{}(name); }

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

std::shared_ptr<const RouteTable::Model> RouteTable::make_model(std::vector<RouteEntry> versions) {
  auto model = std::make_shared<Model>();
  model->name = versions.front().model;
  model->versions = std::move(versions);
  std::sort(model->versions.begin(), model->versions.end(),
            [](const RouteEntry& a, const RouteEntry& b) { return a.version < b.version; });
  std::shared_ptr<ShareSampler> sampler;
  for (const RouteEntry& entry : model->versions) {
    if (&entry != &model->versions.front() && entry.version == (&entry)[-1].version) {
      throw std::invalid_argument(label(entry) + " is listed twice");
    }
    if (!sampler) sampler = entry.sampler;
  }
  if (!sampler) sampler = std::make_shared<ShareSampler>();
  model->preferred = &model->versions.back();
  for (RouteEntry& entry : model->versions) {
    entry.sampler = sampler;
    if (entry.ready || entry.on_demand) model->preferred = &entry;  // ends at the highest that can answer
  }
  for (const RouteEntry& entry : model->versions) {
    if (entry.pinned && (entry.ready || entry.on_demand)) model->preferred = &entry;
  }
  return model;
}

RouteTable::RouteTable(std::vector<RouteEntry> entries)
    : RouteTable(RouteTable().replaced(std::move(entries))) {}

RouteTable RouteTable::replaced(std::vector<RouteEntry> entries) const {
  std::array<Shard, kShards> shards;
  for (auto& [name, versions] : by_model(std::move(entries))) {
    const Model* before = find(name);
    if (before != nullptr) versions.front().sampler = before->versions.front().sampler;
    const std::size_t hash = hash_of(name);
    shards[hash % kShards].push_back({hash, make_model(std::move(versions))});
  }
  RouteTable table;
  for (std::size_t i = 0; i < kShards; ++i) {
    if (shards[i].empty()) continue;
    std::sort(shards[i].begin(), shards[i].end(),
              [](const Slot& a, const Slot& b) { return a.hash < b.hash; });
    table.shards_[i] = std::make_shared<const Shard>(std::move(shards[i]));
  }
  return table;
}

RouteTable RouteTable::with(const std::vector<std::string>& models, std::vector<RouteEntry> entries) const {
  std::map<std::string, std::vector<RouteEntry>> added = by_model(std::move(entries));
  std::map<std::size_t, Shard> changed;  // by index
  const auto shard_of = [&](std::size_t hash) -> Shard& {
    const std::size_t index = hash % kShards;
    const auto found = changed.find(index);
    if (found != changed.end()) return found->second;
    return changed.emplace(index, shards_[index] ? *shards_[index] : Shard{}).first->second;
  };
  const std::set<std::string_view> named(models.begin(), models.end());
  for (const std::string_view name : named) {
    std::erase_if(shard_of(hash_of(name)), [&](const Slot& slot) { return slot.model->name == name; });
  }
  for (auto& [name, versions] : added) {
    if (!named.contains(name)) {
      throw std::invalid_argument(label(versions.front()) + " is not among the models to replace");
    }
    const Model* before = find(name);
    if (before != nullptr) versions.front().sampler = before->versions.front().sampler;
    const std::size_t hash = hash_of(name);
    Shard& shard = shard_of(hash);
    const auto place =
        std::upper_bound(shard.begin(), shard.end(), hash,
                         [](std::size_t value, const Slot& slot) { return value < slot.hash; });
    shard.insert(place, {hash, make_model(std::move(versions))});
  }
  RouteTable table = *this;
  for (auto& [index, shard] : changed) {
    table.shards_[index] = shard.empty() ? nullptr : std::make_shared<const Shard>(std::move(shard));
  }
  return table;
}

const RouteTable::Model* RouteTable::find(std::string_view name) const noexcept {
  const std::size_t hash = hash_of(name);
  const std::shared_ptr<const Shard>& shard = shards_[hash % kShards];
  if (!shard) return nullptr;
  auto slot = std::lower_bound(shard->begin(), shard->end(), hash,
                               [](const Slot& each, std::size_t value) { return each.hash < value; });
  for (; slot != shard->end() && slot->hash == hash; ++slot) {
    if (slot->model->name == name) return slot->model.get();
  }
  return nullptr;
}

const RouteEntry* RouteTable::find_version(const Model& model, std::int64_t version) noexcept {
  const auto found =
      std::lower_bound(model.versions.begin(), model.versions.end(), version,
                       [](const RouteEntry& each, std::int64_t value) { return each.version < value; });
  return found == model.versions.end() || found->version != version ? nullptr : &*found;
}

const RouteEntry* RouteTable::unloaded(std::string_view name, std::int64_t version) const noexcept {
  const Model* const model = find(name);
  const RouteEntry* const entry = model == nullptr ? nullptr : find_version(*model, version);
  return entry == nullptr || entry->ready || !entry->on_demand ? nullptr : entry;
}

Route RouteTable::resolve(const RouteQuery& query) const {
  const Model* const model = find(query.model);
  if (model == nullptr) {
    return refuse(Status::model_not_found, "model " + quote_name(query.model) + " is not served here");
  }
  const RouteEntry* found = model->preferred;
  if (query.version != 0) {
    const RouteEntry* const version = find_version(*model, query.version);
    if (version == nullptr) {
      return refuse(Status::version_not_found, "model " + quote_name(query.model) + " has no version " +
                                                   std::to_string(query.version) + "; the default is " +
                                                   std::to_string(found->version));
    }
    found = version;
  }
  const RouteEntry& entry = *found;
  if (!entry.ready) {
    if (entry.on_demand) {
      Route route = refuse(Status::not_loaded, label(entry) + " is not loaded yet");
      route.entry = &entry;
      return route;
    }
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

Router::Router() : table_(std::make_shared<RouteTable>()) {}

void Router::publish(std::vector<RouteEntry> entries) {
  const std::lock_guard lock(publishing_);
  swap(std::make_shared<const RouteTable>(table()->replaced(std::move(entries))));
}

void Router::update(const std::vector<std::string>& models, std::vector<RouteEntry> entries) {
  const std::lock_guard lock(publishing_);
  swap(std::make_shared<const RouteTable>(table()->with(models, std::move(entries))));
}

void Router::swap(std::shared_ptr<const RouteTable> table) {
  {
    const std::lock_guard lock(mutex_);
    table_.swap(table);
    generation_.fetch_add(1, std::memory_order_release);
  }
  // The old table is destroyed here, outside of that lock: that may destroy lanes and kernels.
}

std::shared_ptr<const RouteTable> Router::table() const {
  const std::lock_guard lock(mutex_);
  return table_;
}

}  // namespace fused_mlp
