// SPDX-License-Identifier: Apache-2.0
// Routes, statuses and histograms.
#include <doctest/doctest.h>

#include <future>
#include <thread>

#include "engine/route/router.hpp"
#include "engine/run/busy_threads.hpp"
#include "puppets.hpp"

namespace fused_mlp::test {
namespace {

RouteEntry entry(std::int64_t version, std::shared_ptr<Lane> fused, std::shared_ptr<Lane> unfused = nullptr) {
  RouteEntry result;
  result.model = "digits";
  result.version = version;
  result.fused = std::move(fused);
  result.unfused = std::move(unfused);
  return result;
}

TEST_CASE("default version is the highest that is ready") {
  Rig rig;
  auto old_lane = rig.add_lane();
  auto new_lane = rig.add_lane();
  RouteEntry loading = entry(3, nullptr);
  loading.ready = false;
  const RouteTable table({entry(2, new_lane), loading, entry(1, old_lane)});
  CHECK_EQ(table.resolve({"digits"}).lane, new_lane.get());
  CHECK_EQ(table.resolve({"digits", 1}).lane, old_lane.get());
  CHECK_EQ(table.resolve({"digits", 3}).status, Status::not_ready);
  CHECK_EQ(RouteTable({loading}).resolve({"digits"}).status, Status::not_ready);
}

TEST_CASE("unknown routes are refused by name") {
  Rig rig;
  const RouteTable table({entry(1, rig.add_lane())});
  const Route unknown = table.resolve({"dig"});
  CHECK_EQ(unknown.status, Status::model_not_found);
  CHECK_EQ(unknown.error, "model 'dig' is not served here");
  CHECK_EQ(table.resolve({"digits", 7}).error, "model 'digits' has no version 7; the default is 1");
  CHECK_EQ(table.resolve({"digits", -1}).status, Status::version_not_found);
  CHECK_EQ(table.resolve({""}).status, Status::model_not_found);
}

TEST_CASE("names sent back are cut between characters") {
  const std::string text = quote_name(std::string(63, 'a') + "\xC3\xA9" + std::string(5000, 'b'));
  CHECK_EQ(text, "'" + std::string(63, 'a') + "...'");
  CHECK_EQ(quote_name("a\nb\x7F"), "'a?b?'");
}

TEST_CASE("variant override needs permission and a lane") {
  Rig rig;
  auto fused = rig.add_lane();
  auto unfused = rig.add_lane();
  RouteEntry both = entry(1, fused, unfused);
  CHECK_EQ(RouteTable({both}).resolve({"digits", 0, Variant::unfused}).status, Status::override_not_allowed);
  CHECK_EQ(RouteTable({both}).resolve({"digits", 0, Variant::fused}).lane, fused.get());
  both.allow_override = true;
  const RouteTable open({both});
  CHECK_EQ(open.resolve({"digits", 0, Variant::unfused}).lane, unfused.get());
  CHECK_EQ(open.resolve({"digits", 0, Variant::unfused}).variant, Variant::unfused);
  both.unfused = nullptr;
  CHECK_EQ(RouteTable({both}).resolve({"digits", 0, Variant::unfused}).status, Status::variant_not_loaded);
}

TEST_CASE("the same version twice is an error") {
  Rig rig;
  auto lane = rig.add_lane();
  bool thrown = false;
  try {
    RouteTable({entry(1, lane), entry(1, lane)});
  } catch (const std::invalid_argument&) {
    thrown = true;
  }
  CHECK(thrown);
}

TEST_CASE("published routes replace all others") {
  Rig rig;
  Router router;
  CHECK(!router.table()->resolve({"digits"}).ok());
  const std::uint64_t generation = router.generation();
  auto lane = rig.add_lane();
  router.publish({entry(1, lane)});
  CHECK(router.generation() != generation);
  CHECK_EQ(router.table()->resolve({"digits"}).lane, lane.get());
  router.publish({});
  CHECK(!router.table()->resolve({"digits"}).ok());
}

RouteEntry named(const std::string& model, std::shared_ptr<Lane> fused) {
  RouteEntry result = entry(1, std::move(fused));
  result.model = model;
  return result;
}

TEST_CASE("an update changes the named models only") {
  Rig rig;
  Router router;
  auto lane = rig.add_lane();
  auto other = rig.add_lane();
  std::vector<RouteEntry> many;
  for (int i = 0; i < 1000; ++i) many.push_back(named("m" + std::to_string(i), lane));
  router.publish(many);
  const std::shared_ptr<const RouteTable> before = router.table();
  router.update({"m7", "m8", "new"}, {named("m7", other), named("new", other)});
  const std::shared_ptr<const RouteTable> after = router.table();
  CHECK_EQ(after->resolve({"m7"}).lane, other.get());
  CHECK_EQ(after->resolve({"new"}).lane, other.get());
  CHECK_EQ(after->resolve({"m8"}).status, Status::model_not_found);
  CHECK_EQ(before->resolve({"m7"}).lane, lane.get());
  CHECK_EQ(before->resolve({"m8"}).lane, lane.get());
  for (int i = 9; i < 1000; ++i) {
    const std::string name = "m" + std::to_string(i);
    CHECK_EQ(after->resolve({name}).lane, lane.get());
    // Not a copy: the cost of an update does not grow with the table.
    CHECK_EQ(after->resolve({name}).entry, before->resolve({name}).entry);
  }
  bool thrown = false;
  try {
    router.update({"m9"}, {named("m10", other)});
  } catch (const std::invalid_argument&) {
    thrown = true;
  }
  CHECK(thrown);
  CHECK_EQ(router.table()->resolve({"m10"}).lane, lane.get());
}

// What Python made for a model is freed with the GIL, and a vocabulary in milliseconds.
TEST_CASE("an event loop frees no routes itself") {
  Router router;
  const auto freed_by = std::make_shared<std::promise<std::thread::id>>();
  std::future<std::thread::id> freed = freed_by->get_future();
  RouteEntry own = entry(1, nullptr);
  own.unserved = {new RequestMetrics, [freed_by](RequestMetrics* counts) {
                    delete counts;
                    freed_by->set_value(std::this_thread::get_id());
                  }};
  router.publish({own});
  own = {};
  std::shared_ptr<const RouteTable> old = router.table();
  router.publish({});
  std::thread::id loop_id;
  std::thread loop([&] {
    this_thread_is_loop = true;
    loop_id = std::this_thread::get_id();
    old.reset();
  });
  loop.join();
  CHECK(freed.get() != loop_id);
}

TEST_CASE("a version on demand is chosen and named") {
  Rig rig;
  auto lane = rig.add_lane();
  RouteEntry unloaded = entry(2, nullptr);
  unloaded.ready = false;
  unloaded.on_demand = true;
  RouteEntry broken = entry(3, nullptr);
  broken.ready = false;
  const RouteTable table({entry(1, lane), unloaded, broken});
  const Route route = table.resolve({"digits"});
  CHECK_EQ(route.status, Status::not_loaded);
  CHECK_EQ(route.entry->version, 2);
  CHECK_EQ(table.resolve({"digits", 1}).lane, lane.get());
  CHECK_EQ(table.resolve({"digits", 3}).status, Status::not_ready);
}

TEST_CASE("a default without room is refused and stays the default") {
  Rig rig;
  auto lane = rig.add_lane();
  RouteEntry crowded_out = entry(2, nullptr);
  crowded_out.ready = false;
  crowded_out.no_room = true;
  const RouteTable table({entry(1, lane), crowded_out});
  const Route route = table.resolve({"digits"});
  CHECK_EQ(route.status, Status::not_ready);
  CHECK(route.error.find("version 2") != std::string::npos);
  CHECK(route.error.find("FUSED_MLP_MAX_LOADED_BYTES") != std::string::npos);
  CHECK_EQ(table.resolve({"digits", 1}).lane, lane.get());
  CHECK(table.unloaded("digits", 2) == nullptr);
}

TEST_CASE("every status has a code and a name") {
  CHECK_EQ(grpc_code(Status::ok), 0);
  CHECK_EQ(grpc_code(Status::invalid_input), 3);
  CHECK_EQ(grpc_code(Status::overloaded), 8);
  CHECK_EQ(grpc_code(Status::shutting_down), 14);
  CHECK_EQ(grpc_code(Status::kernel_error), 13);
  for (int i = 0; i < kStatusCount; ++i) {
    CHECK((grpc_code(static_cast<Status>(i)) == 0) == (i == 0));
    CHECK(std::string(status_name(static_cast<Status>(i))).size() > 1);
  }
}

TEST_CASE("histogram puts every value under its bound") {
  DurationHistogram histogram;
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < kDurationBounds.size(); ++i) {
    const std::int64_t bound = kDurationBounds[i];
    CHECK_EQ(DurationHistogram::bucket_of(bound), i);
    CHECK_EQ(DurationHistogram::bucket_of(bound + 1), i + 1);
    histogram.observe(bound);
    sum += bound;
  }
  CHECK_EQ(DurationHistogram::bucket_of(0), 0u);
  CHECK_EQ(DurationHistogram::bucket_of(std::numeric_limits<std::int64_t>::max()), kDurationBounds.size());
  histogram.observe(-5);  // a negative duration counts as zero
  const HistogramSnapshot snapshot = histogram.snapshot();
  CHECK_EQ(snapshot.count, kDurationBounds.size() + 1);
  CHECK_EQ(snapshot.sum, sum);
  CHECK_EQ(snapshot.buckets[0], 2u);
  CHECK_EQ(RowHistogram::bucket_of(3), 2u);
}

}  // namespace
}  // namespace fused_mlp::test
