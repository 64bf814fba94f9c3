// SPDX-License-Identifier: Apache-2.0
// Arms of several versions: shares in turn and by key, labels, the default, and how texts name an arm.
#include <doctest/doctest.h>

#include <cmath>
#include <map>

#include "engine/route/router.hpp"
#include "puppets.hpp"

namespace fused_mlp::test {
namespace {

// Versions 1 to 4, each with both variants.
struct Versions {
  Versions() {
    for (std::int64_t version = 1; version <= 4; ++version) {
      RouteEntry entry;
      entry.model = "m";
      entry.version = version;
      entry.fused = rig.add_lane();
      entry.unfused = rig.add_lane();
      entries.push_back(entry);
    }
  }
  void publish(std::vector<ArmShare> arms, std::int64_t default_version = 1,
               std::vector<std::pair<std::string, std::int64_t>> labels = {}) {
    router.update({"m"}, entries, {{"m", default_version, std::move(arms), std::move(labels)}});
  }
  std::int64_t version(const RouteQuery& query = {"m"}) const {
    const Route route = router.table()->resolve(query);
    CHECK(route.ok());
    return route.entry->version;
  }
  std::vector<std::int64_t> by_key() const {
    std::vector<std::int64_t> versions;
    for (int key = 0; key < 2000; ++key) {
      RouteQuery query{"m"};
      query.key = hash_key("user-" + std::to_string(key));
      versions.push_back(version(query));
    }
    return versions;
  }

  Rig rig;
  std::vector<RouteEntry> entries;
  Router router;
};

TEST_CASE("every window of requests has the shares of its arms") {
  Versions versions;
  const std::map<std::int64_t, double> shares = {{1, 0.35}, {2, 0.1}, {3, 0.25}, {4, 0.3}};
  versions.publish(
      {{2, Variant::unspecified, 0.1}, {3, Variant::unspecified, 0.25}, {4, Variant::unspecified, 0.3}});
  std::vector<std::map<std::int64_t, int>> before = {{}};
  for (int i = 0; i < 1000; ++i) {
    before.push_back(before.back());
    ++before.back()[versions.version()];
  }
  for (std::size_t from = 0; from < before.size(); from += 31) {
    for (std::size_t to = from; to < before.size(); to += 17) {
      for (const auto& [version, share] : shares) {
        const double expected = share * static_cast<double>(to - from);
        // One for the first arm, one more for each that chooses from what the others left.
        CHECK(std::abs(before[to][version] - before[from][version] - expected) <= 3 + 1e-6);
      }
    }
  }
}

TEST_CASE("of two arms each grows at the cost of the default alone") {
  Versions versions;
  const auto arms = [](double second, double third) {
    return std::vector<ArmShare>{{2, Variant::unspecified, second}, {3, Variant::unspecified, third}};
  };
  versions.publish(arms(0.1, 0.1));
  std::vector<std::int64_t> was = versions.by_key();
  for (const auto& [second, third, grown] :
       std::vector<std::tuple<double, double, std::int64_t>>{{0.3, 0.1, 2}, {0.3, 0.4, 3}, {0.6, 0.4, 2}}) {
    versions.publish(arms(second, third));
    const std::vector<std::int64_t> now = versions.by_key();
    std::map<std::int64_t, int> counts;
    for (std::size_t i = 0; i < now.size(); ++i) {
      ++counts[now[i]];
      CHECK((now[i] == was[i] || (was[i] == 1 && now[i] == grown)));
    }
    for (const auto& [version, share] : std::map<std::int64_t, double>{{2, second}, {3, third}}) {
      CHECK(std::abs(counts[version] - 2000 * share) <= 5 * std::sqrt(2000 * share * (1 - share)));
    }
    was = now;
  }
  CHECK_EQ(std::count(was.begin(), was.end(), 1), 0);  // all shares are given away
}

TEST_CASE("a request that names a version or label takes no part in the shares") {
  Versions versions;
  versions.publish({{2, Variant::unspecified, 1.0}}, 1, {{"stable", 3}, {"gone", 9}});
  CHECK_EQ(versions.version(), 2);
  CHECK_EQ(versions.version({"m", 4}), 4);
  const auto labelled = [](std::string_view label) {
    return RouteQuery{"m", 0, Variant::unspecified, {}, {}, label};
  };
  CHECK_EQ(versions.version(labelled("stable")), 3);
  for (const std::string_view label : {"gone", "never"}) {
    const Route route = versions.router.table()->resolve(labelled(label));
    CHECK_EQ(route.status, Status::version_not_found);
    CHECK_EQ(route.error, "model 'm' has no version '" + std::string(label) + "'; the default is 1");
  }
}

TEST_CASE("a default that is not there is not replaced by another version") {
  Versions versions;
  versions.publish({}, 7);
  const Route route = versions.router.table()->resolve({"m"});
  CHECK_EQ(route.status, Status::version_not_found);
  CHECK_EQ(route.error, "model 'm' has no version that its policy names as the default");
  CHECK_EQ(versions.version({"m", 2}), 2);
  CHECK_EQ(versions.router.table()->resolve({"m", 8}).error, "model 'm' has no version 8");
}

TEST_CASE("an arm names a variant of its version") {
  Versions versions;
  versions.publish({{2, Variant::unfused, 1.0}});
  const Route route = versions.router.table()->resolve({"m"});
  CHECK_EQ(route.variant, Variant::unfused);
  CHECK_EQ(route.lane, versions.entries[1].unfused.get());
  // Naming a variant needs permission; the version is still the policy's choice.
  CHECK_EQ(versions.router.table()->resolve({"m", 0, Variant::unfused}).status, Status::override_not_allowed);
  CHECK_EQ(versions.router.table()->resolve({"m", 0, Variant::fused}).lane, versions.entries[1].fused.get());
  versions.entries[1].unfused = nullptr;
  versions.publish({{2, Variant::unfused, 1.0}});
  CHECK_EQ(versions.router.table()->resolve({"m"}).variant, Variant::fused);
}

TEST_CASE("an arm is named by a version or label and a variant") {
  ArmName arm;
  CHECK(
      (parse_arm("3/fused", arm) && arm.version == 3 && arm.variant == Variant::fused && arm.label.empty()));
  CHECK((parse_arm("3", arm) && arm.version == 3 && arm.variant == Variant::unspecified));
  CHECK((parse_arm("unfused", arm) && !arm.names_version() && arm.variant == Variant::unfused));
  CHECK((parse_arm("latest/unfused", arm) && arm.label == "latest" && arm.variant == Variant::unfused));
  CHECK((parse_arm("stable-2.x", arm) && arm.label == "stable-2.x"));
  const std::string longest(64, 'a');
  CHECK(parse_arm(longest, arm));
  for (const std::string_view text : {"", "/", "3/", "/fused", "0", "-1", "3/fast", "3/fused/x", "Stable",
                                      "a b", "fused/fused", "3x", "9223372036854775808"}) {
    CHECK(!parse_arm(text, arm));
  }
  CHECK(!parse_arm(longest + "a", arm));
}

}  // namespace
}  // namespace fused_mlp::test
