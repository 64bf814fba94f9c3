// SPDX-License-Identifier: Apache-2.0
#include "engine/route/router.hpp"

#include <algorithm>
#include <cmath>
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
  if (end != entry.out_features || entry.heads.size() > kMaxHeads) {
    throw std::invalid_argument(label(entry) + ": expected outputs of " + std::to_string(entry.out_features) +
                                " columns in all, at most " + std::to_string(kMaxHeads) + " of them");
  }
  return entry;
}

std::shared_ptr<const RouteTable::Model> RouteTable::make_model(std::vector<RouteEntry> versions,
                                                                const RoutePlan* plan) const {
  auto model = std::make_shared<Model>();
  model->name = versions.front().model;
  model->versions = std::move(versions);
  std::sort(model->versions.begin(), model->versions.end(),
            [](const RouteEntry& a, const RouteEntry& b) { return a.version < b.version; });
  model->preferred = &model->versions.back();
  for (const RouteEntry& entry : model->versions) {
    if (&entry != &model->versions.front() && entry.version == (&entry)[-1].version) {
      throw std::invalid_argument(label(entry) + " is listed twice");
    }
    // Ends at the highest that can answer, now or once there is room: a shortage does not change the default.
    if (entry.ready || entry.on_demand || entry.no_room) model->preferred = &entry;
  }
  const Model* const before = find(model->name);
  model->samplers = before != nullptr ? before->samplers : std::make_shared<Samplers>();
  if (plan == nullptr) return model;
  if (plan->default_version != 0) model->preferred = find_version(*model, plan->default_version);
  for (const auto& [name, version] : plan->labels) {
    model->labels.emplace_back(name, find_version(*model, version));
  }
  if (plan->arms.size() > kMaxArms) {
    throw std::invalid_argument("expected at most " + std::to_string(kMaxArms) + " arms");
  }
  // Keys: every other arm begins at the top, so that of two arms each grows at the cost of the default alone.
  double left = 1, taken[2] = {0, 0};
  for (const ArmShare& arm : plan->arms) {
    const RouteEntry* const entry = find_version(*model, arm.version);
    if (entry == nullptr)
      throw std::invalid_argument("an arm of version " + std::to_string(arm.version) +
                                  ", which is not there");
    const bool from_top = model->parts.size() % 2 != 0;
    taken[from_top] = std::min(1.0, taken[from_top] + arm.share);
    double in_turn = left > 0 ? std::min(1.0, arm.share / left) : 0;
    // Upwards: three times a third, rounded down, would be one request short.
    if (left < 1 && in_turn > 0) in_turn = std::nextafter(in_turn, 1.0);
    model->parts.push_back({entry, arm.variant, Share(taken[from_top]), from_top, Share(in_turn)});
    left -= arm.share;
  }
  return model;
}

bool RouteTable::takes(const Part& part, const RouteQuery& query, ShareSampler& sampler) noexcept {
  if (!query.key && query.request_id.empty()) return sampler.sample(part.in_turn);
  const std::uint64_t hash = query.key ? *query.key : hash_key(query.request_id);
  return part.keys.contains(part.from_top ? ~hash : hash);
}

RouteTable::RouteTable(std::vector<RouteEntry> entries)
    : RouteTable(RouteTable().replaced(std::move(entries))) {}

RouteTable RouteTable::replaced(std::vector<RouteEntry> entries) const {
  std::array<Shard, kShards> shards;
  for (auto& [name, versions] : by_model(std::move(entries))) {
    const std::size_t hash = hash_of(name);
    shards[hash % kShards].push_back({hash, make_model(std::move(versions), nullptr)});
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

RouteTable RouteTable::with(const std::vector<std::string>& models, std::vector<RouteEntry> entries,
                            const std::vector<RoutePlan>& plans) const {
  std::map<std::string_view, const RoutePlan*> planned;
  for (const RoutePlan& plan : plans) planned.emplace(plan.model, &plan);
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
    const auto plan = planned.find(name);
    const std::size_t hash = hash_of(name);
    Shard& shard = shard_of(hash);
    const auto place =
        std::upper_bound(shard.begin(), shard.end(), hash,
                         [](std::size_t value, const Slot& slot) { return value < slot.hash; });
    shard.insert(place,
                 {hash, make_model(std::move(versions), plan == planned.end() ? nullptr : plan->second)});
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

RequestMetrics* RouteTable::unserved(std::string_view name) const noexcept {
  const Model* const model = find(name);
  return model == nullptr ? nullptr : model->versions.front().unserved.get();
}

Route RouteTable::refuse_version(const Model& model, const RouteQuery& query) {
  std::string text = "model " + quote_name(query.model) + " has no version ";
  if (query.version != 0) {
    text += std::to_string(query.version);
  } else {
    text += query.label.empty() ? "that its policy names as the default" : quote_name(query.label);
  }
  if (model.preferred != nullptr) text += "; the default is " + std::to_string(model.preferred->version);
  return refuse(Status::version_not_found, std::move(text));
}

// In order of precedence: withdrawal of fused, the request's variant, that of the arm, the split of the
// version, the version's own. An arm whose fused kernel could not be built answers as its version does.
Variant RouteTable::choose_variant(const RouteEntry& entry, const RouteQuery& query, Variant of_arm,
                                   Samplers& samplers) noexcept {
  if (entry.withdrawn) return Variant::unfused;
  if (query.variant != Variant::unspecified) return query.variant;
  if (of_arm != Variant::unspecified) return lane_of(entry, of_arm) ? of_arm : entry.variant;
  if (entry.split.none()) return entry.variant;
  const Variant other = entry.variant == Variant::fused ? Variant::unfused : Variant::fused;
  const Part split{&entry, other, entry.split, false, entry.split};
  return lane_of(entry, other) && takes(split, query, samplers[0]) ? other : entry.variant;
}

Route RouteTable::resolve(const RouteQuery& query) const {
  const Model* const model = find(query.model);
  if (model == nullptr) {
    return refuse(Status::model_not_found, "model " + quote_name(query.model) + " is not served here");
  }
  const RouteEntry* found = nullptr;
  Variant variant = Variant::unspecified;  // of the arm; that of a request that names one goes first
  if (query.version != 0) {
    found = find_version(*model, query.version);
  } else if (!query.label.empty()) {
    const auto named = std::find_if(model->labels.begin(), model->labels.end(),
                                    [&](const auto& each) { return each.first == query.label; });
    if (named != model->labels.end()) found = named->second;
  } else {
    found = model->preferred;
    for (std::size_t i = 0; i < model->parts.size(); ++i) {
      const Part& part = model->parts[i];
      if (!takes(part, query, (*model->samplers)[i])) continue;
      found = part.entry;
      variant = part.variant;
      break;
    }
  }
  if (found == nullptr) return refuse_version(*model, query);
  const RouteEntry& entry = *found;
  if (!entry.ready) {
    if (entry.on_demand) {
      Route route = refuse(Status::not_loaded, label(entry) + " is not loaded yet");
      route.entry = &entry;
      return route;
    }
    return refuse(Status::not_ready,
                  label(entry) + (entry.loading   ? " is still loading"
                                  : entry.no_room ? " is not loaded: the models that fill "
                                                    "FUSED_MLP_MAX_LOADED_BYTES are in use; retry later"
                                                  : " could not be loaded; GetModel says why"));
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
  route.variant = choose_variant(entry, query, variant, *model->samplers);
  route.lane = lane_of(entry, route.variant);
  if (!route.lane) {
    return refuse(Status::variant_not_loaded,
                  label(entry) + " has no " + variant_name(route.variant) + " kernel loaded",
                  lane_of(entry, entry.variant));
  }
  route.entry = &entry;
  return route;
}

namespace {

std::shared_ptr<const RouteTable> freed_later(RouteTable table) {
  return {new RouteTable(std::move(table)), FreeLater{}};
}

}  // namespace

Router::Router() : table_(freed_later({})) {}

void Router::publish(std::vector<RouteEntry> entries) {
  const std::lock_guard lock(publishing_);
  swap(freed_later(table()->replaced(std::move(entries))));
}

void Router::update(const std::vector<std::string>& models, std::vector<RouteEntry> entries,
                    const std::vector<RoutePlan>& plans) {
  const std::lock_guard lock(publishing_);
  swap(freed_later(table()->with(models, std::move(entries), plans)));
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
