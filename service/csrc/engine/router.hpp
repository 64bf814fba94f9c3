// From (model, version, variant) to a lane. The table is immutable; publishing replaces it as a whole, and
// whoever still reads the old one keeps its lanes alive until they let go.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "engine/lane.hpp"
#include "engine/share.hpp"
#include "engine/status.hpp"

namespace fused_mlp {

// As fused_mlp.v1.Variant; `unspecified` leaves the choice to the server.
enum class Variant : std::uint8_t { unspecified, fused, unfused };
const char* variant_name(Variant variant) noexcept;  // "fused", "unfused", ""

// One version of one model.
struct RouteEntry {
  std::string model;
  std::int64_t version = 1;
  std::shared_ptr<Lane> fused;       // null: not loaded
  std::shared_ptr<Lane> unfused;     // null: not loaded
  Variant variant = Variant::fused;  // serves requests that name none
  bool allow_override = false;       // whether a request may name the other one
  bool ready = true;
  std::size_t in_features = 0;
  std::size_t out_features = 0;
  std::uint32_t max_request_rows = 4096;
  Share split;             // of the requests that name none, how many go to the other variant
  bool withdrawn = false;  // fused was found to be wrong: unfused serves all, also those that name fused
  std::shared_ptr<ShareSampler> sampler;  // whose turn it is for the split; one for all versions of a model
};

// What a request says about where it wants to go.
struct RouteQuery {
  std::string_view model;
  std::int64_t version = 0;  // 0: the default, which is the highest that is ready
  Variant variant = Variant::unspecified;
  std::optional<std::uint64_t> key = {};  // hash_key of what the caller wants to be split by
  std::string_view request_id = {};       // the key of those who gave no other; empty: split in turn
};

// Where it goes. `entry` and `lane` live as long as the table that was asked.
struct Route {
  Status status = Status::ok;
  const RouteEntry* entry = nullptr;
  Lane* lane = nullptr;
  Variant variant = Variant::unspecified;
  std::string error;  // when not ok: the line to send
  bool ok() const noexcept { return status == Status::ok; }
};

class RouteTable {
 public:
  explicit RouteTable(std::vector<RouteEntry> entries);  // throws std::invalid_argument on duplicates
  Route resolve(const RouteQuery& query) const;
  const std::vector<RouteEntry>& entries() const noexcept { return entries_; }

 private:
  struct Hash {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const noexcept {
      return std::hash<std::string_view>{}(text);
    }
  };
  struct Model {
    std::map<std::int64_t, const RouteEntry*> versions;
    const RouteEntry* preferred = nullptr;  // what version 0 means
  };

  const std::vector<RouteEntry> entries_;
  std::unordered_map<std::string, Model, Hash, std::equal_to<>> models_;
};

class Router {
 public:
  Router();
  void publish(std::vector<RouteEntry> entries);
  std::shared_ptr<const RouteTable> table() const;
  std::uint64_t generation() const noexcept { return generation_.load(std::memory_order_acquire); }

 private:
  mutable std::mutex mutex_;  // for the two below, not for reading what they point to
  std::shared_ptr<const RouteTable> table_;
  std::map<std::string, std::shared_ptr<ShareSampler>>
      samplers_;  // by model: shares stay exact from table to table
  std::atomic<std::uint64_t> generation_{1};
};

}  // namespace fused_mlp
