// SPDX-License-Identifier: Apache-2.0
// Maps the arms of models to lanes, and requests to arms. A table is immutable; publishing makes a new one,
// which shares the parts that stay the same. A reference to an old table keeps its lanes alive.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/reaper.hpp"
#include "engine/route/arm.hpp"
#include "engine/route/share.hpp"
#include "engine/schedule/lane.hpp"
#include "engine/status.hpp"

namespace fused_mlp {

// One output of a model: a range of columns of what its kernel writes.
struct Head {
  std::string name = "output";
  std::size_t begin = 0;
  std::size_t width = 0;
  bool squeeze = false;  // the model itself answers (rows,), not (rows, 1)
};
constexpr std::size_t kMaxHeads = 64;

class InputLayout;  // codec/input_layout.hpp

// One version of one model.
struct RouteEntry {
  std::string model;
  std::int64_t version = 1;
  std::shared_ptr<Lane> fused;       // null: not loaded
  std::shared_ptr<Lane> unfused;     // null: not loaded
  Variant variant = Variant::fused;  // for requests that name none
  bool allow_override = false;       // whether a request may name the other variant
  bool ready = true;
  bool loading = false;    // not ready yet, but about to be
  bool on_demand = false;  // not loaded: the first request for it has it loaded, and waits
  bool no_room = false;    // refused while memory is full; still eligible as default
  std::size_t in_features = 0;
  std::size_t out_features = 0;
  std::uint32_t max_request_rows = 4096;
  Share split;                   // the share of requests without a variant that go to the other variant
  bool withdrawn = false;        // fused gave wrong results: unfused answers even requests that name fused
  std::vector<Head> heads = {};  // in the order of their columns; see with_heads
  std::vector<std::int64_t> input_shape =
      {};  // of one row, as the model itself takes it; empty: [in_features]
  std::shared_ptr<RequestMetrics> unserved = nullptr;   // of the model: see RouteTable::unserved
  std::shared_ptr<const InputLayout> layout = nullptr;  // of named inputs; null: one tensor of floats

  // The name of a head in answers: empty if the model has one output that is called `output`.
  std::string_view shown_name(const Head& head) const noexcept {
    return heads.size() == 1 && head.name == "output" ? std::string_view() : head.name;
  }
};

// Throws std::invalid_argument unless the heads are all the columns, one after the other. One that covers
// all, where none is given.
RouteEntry with_heads(RouteEntry entry);

// An arm that a policy gives a share of the requests that name no version.
struct ArmShare {
  std::int64_t version = 0;
  Variant variant = Variant::unspecified;  // unspecified: that of its version
  double share = 0;                        // of all such requests
};
constexpr std::size_t kMaxArms = 8;

// The policy of a model for its versions. Without one, the highest version that can answer does.
struct RoutePlan {
  std::string model;
  std::int64_t default_version = 0;  // 0: the highest that can answer. One that is not there answers nothing
  std::vector<ArmShare> arms = {};   // beside the default; their shares sum up to 1 at most
  std::vector<std::pair<std::string, std::int64_t>> labels = {};
};

// The routing fields of a request.
struct RouteQuery {
  std::string_view model;
  std::int64_t version = 0;  // 0: by the label, else as the policy says
  Variant variant = Variant::unspecified;
  std::optional<std::uint64_t> key = {};  // hash_key of the request's split key
  std::string_view request_id = {};       // split by this if there is no key; empty: by the sampler
  std::string_view label = {};
};

// The result of routing. `entry` and `lane` live as long as the table they came from. A request for a variant
// that it cannot have is refused with the lane of the server's own variant, to be counted there: no entry,
// not ok.
struct Route {
  Status status = Status::ok;
  const RouteEntry* entry = nullptr;
  Lane* lane = nullptr;
  Variant variant = Variant::unspecified;
  std::string error;  // the text to send if not ok
  bool ok() const noexcept { return status == Status::ok; }
};

class RouteTable : public Reaped {
 public:
  RouteTable() = default;
  explicit RouteTable(std::vector<RouteEntry> entries);  // throws std::invalid_argument on duplicates
  Route resolve(const RouteQuery& query) const;
  // This table without `models`, and with `entries`, all of which are of those models. Costs what the change
  // does, not what the table holds. Throws std::invalid_argument.
  RouteTable with(const std::vector<std::string>& models, std::vector<RouteEntry> entries,
                  const std::vector<RoutePlan>& plans = {}) const;
  // A new table with all of `entries`; models that this one has keep their samplers, so that shares stay
  // exact.
  RouteTable replaced(std::vector<RouteEntry> entries) const;
  // Where to count requests for a model that reached none of its lanes; null: it is not served, or keeps no
  // such counts.
  RequestMetrics* unserved(std::string_view model) const noexcept;
  // The version, if it is to be loaded on demand and is not loaded yet; null otherwise.
  const RouteEntry* unloaded(std::string_view model, std::int64_t version) const noexcept;

 private:
  // For requests without a key; kept when routes change, so that shares stay exact.
  using Samplers = std::array<ShareSampler, kMaxArms>;
  // An arm and the requests that it takes of those that come to it: by the hash of a key, those below `keys`,
  // or above as much from the top; without a key, its share of those that the arms before it left.
  struct Part {
    const RouteEntry* entry;
    Variant variant;  // unspecified: that of its version
    Share keys;
    bool from_top;
    Share in_turn;
  };
  struct Model {
    std::string name;
    std::vector<RouteEntry> versions;  // ascending
    const RouteEntry* preferred =
        nullptr;  // the default version; null: the policy names one that is not there
    std::vector<Part> parts;
    std::vector<std::pair<std::string, const RouteEntry*>> labels;  // null: not there
    std::shared_ptr<Samplers> samplers;
  };
  struct Slot {
    std::size_t hash;
    std::shared_ptr<const Model> model;
  };
  using Shard = std::vector<Slot>;  // by hash
  static constexpr std::size_t kShards = 256;

  std::shared_ptr<const Model> make_model(std::vector<RouteEntry> versions, const RoutePlan* plan) const;
  static bool takes(const Part& part, const RouteQuery& query, ShareSampler& sampler) noexcept;
  static Variant choose_variant(const RouteEntry& entry, const RouteQuery& query, Variant of_arm,
                                Samplers& samplers) noexcept;
  static Route refuse_version(const Model& model, const RouteQuery& query);
  const Model* find(std::string_view name) const noexcept;
  static const RouteEntry* find_version(const Model& model, std::int64_t version) noexcept;

  std::array<std::shared_ptr<const Shard>, kShards> shards_;  // null: empty
};

class Router {
 public:
  Router();
  // Replaces all routes in one step.
  void publish(std::vector<RouteEntry> entries);
  // Replaces the routes of these models in one step; a model without entries is no longer served.
  void update(const std::vector<std::string>& models, std::vector<RouteEntry> entries,
              const std::vector<RoutePlan>& plans = {});
  std::shared_ptr<const RouteTable> table() const;
  std::uint64_t generation() const noexcept { return generation_.load(std::memory_order_acquire); }

 private:
  void swap(std::shared_ptr<const RouteTable> table);

  std::mutex publishing_;     // one new table at a time
  mutable std::mutex mutex_;  // guards table_, not what it points to
  std::shared_ptr<const RouteTable> table_;
  std::atomic<std::uint64_t> generation_{1};
};

}  // namespace fused_mlp
