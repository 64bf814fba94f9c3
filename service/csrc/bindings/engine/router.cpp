// SPDX-License-Identifier: Apache-2.0
#include "engine/route/router.hpp"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "bindings/engine/engine.hpp"
#include "bindings/errors.hpp"
#include "bindings/register.hpp"
#include "codec/input_layout.hpp"

namespace nb = nanobind;

namespace fused_mlp {

namespace {

PythonRoute resolve(const Router& router, std::string_view model, std::int64_t version, Variant variant,
                    std::string_view key, std::string_view request_id, std::string_view label) {
  PythonRoute result{router.table(), {}};
  RouteQuery query{model, version, variant, {}, request_id, label};
  if (!key.empty()) query.key = hash_key(key);
  result.route = result.table->resolve(query);
  if (!result.route.ok()) {
    Lane* lane = result.route.lane;
    const RouteEntry* entry = result.route.entry;
    raise_refused(result.route.status, result.route.error, 0,
                  lane ? nb::cast(lane->shared_from_this()) : nb::none(), entry ? entry->version : 0);
  }
  return result;
}

}  // namespace

void register_router(nb::module_& m) {
  nb::enum_<Variant>(m, "Variant", "As fused_mlp.v1.Variant.")
      .value("unspecified", Variant::unspecified)
      .value("fused", Variant::fused)
      .value("unfused", Variant::unfused);

  nb::class_<RouteEntry>(m, "RouteEntry", "One version of one model, and the lanes that serve it.")
      .def(
          "__init__",
          [](RouteEntry* self, std::string model, std::int64_t version, std::shared_ptr<Lane> fused,
             std::shared_ptr<Lane> unfused, Variant variant, bool allow_override, bool ready, bool loading,
             bool on_demand, bool no_room, std::size_t in_features, std::size_t out_features,
             std::uint32_t max_request_rows, double split, bool withdrawn,
             const std::vector<std::tuple<std::string, std::size_t, bool>>& outputs,
             std::vector<std::int64_t> input_shape, std::shared_ptr<RequestMetrics> unserved,
             std::shared_ptr<InputLayout> layout) {
            std::vector<Head> heads;
            std::size_t begin = 0;
            for (const auto& [name, width, squeeze] : outputs) {
              heads.push_back({name, begin, width, squeeze});
              begin += width;
            }
            new (self) RouteEntry{std::move(model),
                                  version,
                                  std::move(fused),
                                  std::move(unfused),
                                  variant,
                                  allow_override,
                                  ready,
                                  loading,
                                  on_demand,
                                  no_room,
                                  in_features,
                                  out_features,
                                  max_request_rows,
                                  Share(split),
                                  withdrawn,
                                  std::move(heads),
                                  std::move(input_shape),
                                  std::move(unserved),
                                  std::move(layout)};
          },
          nb::kw_only(), nb::arg("model"), nb::arg("version"), nb::arg("fused") = nb::none(),
          nb::arg("unfused") = nb::none(), nb::arg("variant") = Variant::fused,
          nb::arg("allow_override") = false, nb::arg("ready") = true, nb::arg("loading") = false,
          nb::arg("on_demand") = false, nb::arg("no_room") = false, nb::arg("in_features"),
          nb::arg("out_features"), nb::arg("max_request_rows") = 4096, nb::arg("split") = 0.0,
          nb::arg("withdrawn") = false,
          nb::arg("outputs") = std::vector<std::tuple<std::string, std::size_t, bool>>{},
          nb::arg("input_shape") = std::vector<std::int64_t>{}, nb::arg("unserved") = nb::none(),
          nb::arg("layout") = nb::none());

  nb::class_<PythonRoute>(m, "Route", "The lane that answers a request, and its limits.")
      .def_prop_ro("model", [](const PythonRoute& r) { return r.route.entry->model; })
      .def_prop_ro("version", [](const PythonRoute& r) { return r.route.entry->version; })
      .def_prop_ro("variant", [](const PythonRoute& r) { return r.route.variant; })
      .def_prop_ro("lane", [](const PythonRoute& r) { return r.route.lane->shared_from_this(); })
      .def_prop_ro("in_features", [](const PythonRoute& r) { return r.route.entry->in_features; })
      .def_prop_ro("out_features", [](const PythonRoute& r) { return r.route.entry->out_features; })
      .def_prop_ro("max_request_rows", [](const PythonRoute& r) { return r.route.entry->max_request_rows; });

  nb::class_<RoutePlan>(m, "RoutePlan", "What the policy of a model says of its versions.")
      .def(
          "__init__",
          [](RoutePlan* self, std::string model, std::int64_t default_version,
             const std::vector<std::tuple<std::int64_t, Variant, double>>& arms,
             std::vector<std::pair<std::string, std::int64_t>> labels) {
            std::vector<ArmShare> shares;
            for (const auto& [version, variant, share] : arms) shares.push_back({version, variant, share});
            new (self) RoutePlan{std::move(model), default_version, std::move(shares), std::move(labels)};
          },
          nb::kw_only(), nb::arg("model"), nb::arg("default_version") = 0,
          nb::arg("arms") = std::vector<std::tuple<std::int64_t, Variant, double>>{},
          nb::arg("labels") = std::vector<std::pair<std::string, std::int64_t>>{});

  nb::class_<Router>(m, "Router", "Maps the arms of models to lanes, and requests to arms.")
      .def(nb::init<>())
      .def("publish", &Router::publish, nb::arg("entries"), "Replace all routes in one step.")
      .def("update", &Router::update, nb::arg("models"), nb::arg("entries"),
           nb::arg("plans") = std::vector<RoutePlan>{}, "Replace the routes of some models in one step.")
      .def(
          "record_unserved",
          [](const Router& router, std::string_view model, int code, Nanos ns) {
            const std::shared_ptr<const RouteTable> table = router.table();
            RequestMetrics* const counts = table->unserved(model);
            if (counts != nullptr) counts->record(code, ns);
            return counts != nullptr;
          },
          nb::arg("model"), nb::arg("grpc_code"), nb::arg("duration_ns"),
          "Count a request that reached no lane of its model. False: there is no such model.")
      .def("resolve", &resolve, nb::arg("model"), nb::arg("version") = 0,
           nb::arg("variant") = Variant::unspecified, nb::arg("key") = "", nb::arg("request_id") = "",
           nb::arg("label") = "", "Raises Refused.");

  m.def("hash_key", &hash_key, nb::arg("key"),
        "XXH64 of a key's UTF-8 bytes, which decides the variant in a split.");
}

}  // namespace fused_mlp
