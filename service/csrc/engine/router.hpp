// Maps (model, version, variant) to a lane. The table is immutable; publishing replaces it as a whole. A
// reference to an old table keeps its lanes alive.
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

// As fused_mlp.v1.Variant; `unspecified`: the server chooses.
enum class Variant : std::uint8_t { unspecified, fused, unfused };
const char* variant_name(Variant variant) noexcept;  // "fused", "unfused", ""

// One output of a model: a range of columns of what its kernel writes.
struct Head {
  std::string name = "output";
  std::size_t begin = 0;
  std::size_t width = 0;
  bool squeeze = false;  // the model itself answers (rows,), not (rows, 1)
};
constexpr std::size_t kMostHeads = 64;

// One version of one model.
struct RouteEntry {
  std::string model;
  std::int64_t version = 1;
  std::shared_ptr<Lane> fused;       // null: not loaded
  std::shared_ptr<Lane> unfused;     // null: not loaded
  Variant variant = Variant::fused;  // for requests that name none
  bool allow_override = false;       // whether a request may name the other variant
  bool ready = true;
  bool loading = false;  // not ready yet, but about to be
  std::size_t in_features = 0;
  std::size_t out_features = 0;
  std::uint32_t max_request_rows = 4096;
  Share split;             // the share of requests without a variant that go to the other variant
  bool withdrawn = false;  // fused gave wrong results: unfused answers even requests that name fused
  std::shared_ptr<ShareSampler> sampler;  // for requests without a key; shared by all versions of a model
  std::vector<Head> heads = {};           // in the order of their columns; see with_heads
  std::vector<std::int64_t> input_shape =
      {};  // of one row, as the model itself takes it; empty: [in_features]

  // What callers are told of a head: its name, unless the model has one output that is called `output`.
  std::string_view shown_name(const Head& head) const noexcept {
    return heads.size() == 1 && head.name == "output" ? std::string_view() : head.name;
  }
};

// Throws std::invalid_argument unless the heads are all the columns, one after the other. One that covers
// all, where none is given.
RouteEntry with_heads(RouteEntry entry);

// The routing fields of a request.
struct RouteQuery {
  std::string_view model;
  std::int64_t version = 0;  // 0: the highest version that is ready
  Variant variant = Variant::unspecified;
  std::optional<std::uint64_t> key = {};  // hash_key of the request's split key
  std::string_view request_id = {};       // split by this if there is no key; empty: by the sampler
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
    const RouteEntry* preferred = nullptr;  // the default version
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
  mutable std::mutex mutex_;  // guards table_ and samplers_, not what they point to
  std::shared_ptr<const RouteTable> table_;
  // By model. Outlive a table, so that shares stay exact.
  std::map<std::string, std::shared_ptr<ShareSampler>> samplers_;
  std::atomic<std::uint64_t> generation_{1};
};

}  // namespace fused_mlp
