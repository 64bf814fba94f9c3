#include "engine/router.hpp"

#include <stdexcept>

namespace fused_mlp {

namespace {

Route refuse(Status status, std::string text) {
  Route route;
  route.status = status;
  route.error = std::move(text);
  return route;
}

std::string label(const RouteEntry& entry) {
  return "model " + quote_name(entry.model) + " version " + std::to_string(entry.version);
}

// Which variant serves the request: its own wish, if it may have one; else the server's choice. The split
// of live traffic takes its place between the two.
Variant choose_variant(const RouteEntry& entry, Variant wish) noexcept {
  return wish == Variant::unspecified ? entry.variant : wish;
}

}  // namespace

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

RouteTable::RouteTable(std::vector<RouteEntry> entries) : entries_(std::move(entries)) {
  for (const RouteEntry& entry : entries_) {
    if (!models_[entry.model].versions.emplace(entry.version, &entry).second) {
      throw std::invalid_argument(label(entry) + " is listed twice");
    }
  }
  for (auto& [name, model] : models_) {
    model.preferred = std::prev(model.versions.end())->second;
    for (const auto& [version, entry] : model.versions) {
      if (entry->ready) model.preferred = entry;  // ascending: the last one that is ready
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
  if (!entry.ready)
    return refuse(Status::not_ready, label(entry) + " could not be loaded; GetModel says why");

  // Naming the variant that would serve it anyway is no override.
  if (query.variant != Variant::unspecified && query.variant != entry.variant && !entry.allow_override) {
    return refuse(Status::override_not_allowed,
                  std::string("variant: this server does not let requests choose '") +
                      variant_name(query.variant) + "'; leave it out");
  }
  Route route;
  route.variant = choose_variant(entry, query.variant);
  route.lane = (route.variant == Variant::fused ? entry.fused : entry.unfused).get();
  if (!route.lane) {
    return refuse(Status::variant_not_loaded,
                  label(entry) + " has no " + variant_name(route.variant) + " kernel loaded");
  }
  route.entry = &entry;
  return route;
}

Router::Router() : table_(std::make_shared<RouteTable>(std::vector<RouteEntry>{})) {}

void Router::publish(std::vector<RouteEntry> entries) {
  std::shared_ptr<const RouteTable> table = std::make_shared<RouteTable>(std::move(entries));
  {
    const std::lock_guard lock(mutex_);
    table_.swap(table);
    generation_.fetch_add(1, std::memory_order_release);
  }
  // The old table goes here, outside the lock: with it may go lanes and kernels.
}

std::shared_ptr<const RouteTable> Router::table() const {
  const std::lock_guard lock(mutex_);
  return table_;
}

const RouteTable& RouteReader::current() {
  const std::uint64_t generation = router_->generation();
  if (generation != generation_) {
    table_ = router_->table();
    generation_ = generation;  // read first: a table published in between is fetched once more, never missed
  }
  return *table_;
}

}  // namespace fused_mlp
