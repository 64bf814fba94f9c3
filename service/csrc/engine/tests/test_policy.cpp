// SPDX-License-Identifier: Apache-2.0
// The split: exact shares, sticky keys, and the order of precedence.
#include <doctest/doctest.h>

#include <cmath>
#include <set>
#include <thread>

#include "engine/route/router.hpp"
#include "puppets.hpp"

namespace fused_mlp::test {
namespace {

struct Split {
  explicit Split(double share, bool allow_override = false) : fused(rig.add_lane()), unfused(rig.add_lane()) {
    publish(share, allow_override);
  }
  void publish(double share, bool allow_override = false, bool withdrawn = false) {
    RouteEntry entry;
    entry.model = "m";
    entry.fused = fused;
    entry.unfused = unfused;
    entry.split = Share(share);
    entry.allow_override = allow_override;
    entry.withdrawn = withdrawn;
    RouteEntry older = entry;
    entry.version = 2;
    router.publish({entry, older});
  }
  bool other(const RouteQuery& query = {"m"}) {
    const Route route = router.table()->resolve(query);
    CHECK(route.ok());
    CHECK_EQ(route.lane, (route.variant == Variant::fused ? fused : unfused).get());
    return route.variant == Variant::unfused;
  }
  static RouteQuery keyed(const std::string& key) {
    RouteQuery query{"m"};
    query.key = hash_key(key);
    return query;
  }

  Rig rig;
  std::shared_ptr<Lane> fused, unfused;
  Router router;
};

TEST_CASE("hash is xxh64") {  // published test vectors: clients compute the same hash
  CHECK_EQ(hash_key(""), 0xEF46DB3751D8E999u);
  CHECK_EQ(hash_key("a"), 0xD24EC4F1A98C6E5Bu);
  CHECK_EQ(hash_key("abc"), 0x44BC2CF5AD770999u);
  CHECK_EQ(hash_key("12345678901234567890123456789012345678901234567890123456789012345678901234567890"),
           0xE04A477F19EE145Du);
}

TEST_CASE("every window of requests has its share plus or minus one") {
  for (const double share : {0.1, 0.5, 1.0 / 3, 0.01, 0.999, 1.0, 0.0}) {
    ShareSampler sampler;
    std::vector<int> before = {0};  // before[n]: how many of the first n were selected
    for (int i = 0; i < 3000; ++i) before.push_back(before.back() + sampler.sample(Share(share)));
    for (std::size_t from = 0; from < before.size(); from += 7) {
      for (std::size_t to = from; to < before.size(); to += 13) {
        const double expected = share * static_cast<double>(to - from);
        CHECK(std::abs(before[to] - before[from] - expected) <= 1 + 1e-6);
      }
    }
  }
}

TEST_CASE("shares are exact across threads") {
  ShareSampler sampler;
  std::atomic<int> in{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 2500; ++i) in += sampler.sample(Share(0.1));
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(std::abs(in - 1000) <= 1);
}

TEST_CASE("a new table keeps the sampler of the old one") {
  Split split(0.1);
  int in = 0;
  for (int i = 0; i < 1000; ++i) {
    split.publish(0.1);  // with a new sampler each time, no request would be selected
    in += split.other(i % 2 == 0 ? RouteQuery{"m"} : RouteQuery{"m", 1});
  }
  CHECK(std::abs(in - 100) <= 1);
}

TEST_CASE("a key is sticky and moves only one way as the share grows") {
  Split split(0.1);
  std::set<int> was;
  for (const double share : {0.1, 0.3, 0.8, 1.0}) {
    split.publish(share);
    std::set<int> in;
    for (int key = 0; key < 4000; ++key) {
      const RouteQuery query = Split::keyed("user-" + std::to_string(key));
      if (split.other(query)) in.insert(key);
      CHECK_EQ(split.other(query), in.contains(key));
    }
    // Five standard deviations of a fair hash.
    CHECK(std::abs(static_cast<double>(in.size()) - 4000 * share) <=
          5 * std::sqrt(4000 * share * (1 - share)));
    CHECK(std::includes(in.begin(), in.end(), was.begin(), was.end()));
    was = in;
  }
}

TEST_CASE("a split uses the key then the request id then the sampler") {
  Split split(0.5);
  const auto named = [](const std::string& id) { return RouteQuery{"m", 0, Variant::unspecified, {}, id}; };
  std::string in, out;  // ids on either side
  for (int i = 0; in.empty() || out.empty(); ++i) {
    const std::string id = "id" + std::to_string(i);
    (split.other(named(id)) ? in : out) = id;
  }
  for (int i = 0; i < 10; ++i) {
    CHECK(split.other(named(in)));
    CHECK(!split.other(named(out)));
    RouteQuery both = named(out);
    both.key = hash_key(in);
    CHECK(split.other(both));
  }
}

TEST_CASE("an allowed override takes precedence over the split") {
  Split split(1.0, true);
  CHECK(split.other());
  CHECK(!split.other({"m", 0, Variant::fused}));
  split.publish(1.0, false);
  CHECK_EQ(split.router.table()->resolve({"m", 0, Variant::unfused}).status, Status::override_not_allowed);
}

TEST_CASE("a split to a variant that is not loaded is ignored") {
  Split split(1.0);
  split.unfused = nullptr;
  split.publish(1.0);
  CHECK(!split.other());
}

TEST_CASE("unfused answers every request if fused is withdrawn") {
  Split split(0.5);
  split.publish(0.5, false, /*withdrawn=*/true);
  for (int i = 0; i < 10; ++i) CHECK(split.other());
  CHECK(split.other({"m", 0, Variant::fused}));
  CHECK(split.other({"m", 0, Variant::unfused}));
}

TEST_CASE("a share outside of zero to one is an error") {
  for (const double share : {-0.1, 1.1, std::nan("")}) {
    bool thrown = false;
    try {
      (void)Share(share);
    } catch (const std::invalid_argument&) {
      thrown = true;
    }
    CHECK(thrown);
  }
  CHECK_EQ(Share(1).fraction(), 1.0);
  CHECK_EQ(Share(0.25).fraction(), 0.25);
}

}  // namespace
}  // namespace fused_mlp::test
