// SPDX-License-Identifier: Apache-2.0
#include <arpa/inet.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <chrono>
#include <cstring>
#include <optional>

#include "access/callers.hpp"
#include "access/hosts.hpp"
#include "bindings/errors.hpp"
#include "bindings/register.hpp"

namespace nb = nanobind;

namespace fused_mlp {
namespace {

// "127.0.0.1:4711" or "[::1]:4711"; zeros for anything else.
IpAddress parse_address(std::string_view text) {
  IpAddress result{};
  std::string host(text.substr(0, text.rfind(':')));
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  if (::inet_pton(AF_INET6, host.c_str(), result.data()) == 1) return result;
  in_addr v4;
  if (::inet_pton(AF_INET, host.c_str(), &v4) == 1) {
    result[10] = result[11] = 0xff;
    std::memcpy(result.data() + 12, &v4, sizeof v4);
  }
  return result;
}

Identity identify(Callers& self, nb::handle key, nb::handle subject, const std::vector<std::string>& names,
                  std::string_view peer_address) {
  const std::shared_ptr<const CallerTable> table = self.table();
  std::string key_text, subject_text;
  Shown shown;
  if ((shown.has_key = !key.is_none())) shown.key = key_text = nb::cast<std::string>(key);
  if ((shown.has_subject = !subject.is_none())) shown.subject = subject_text = nb::cast<std::string>(subject);
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return self.identify(*table, shown, Peer(*table, parse_address(peer_address), names),
                       std::chrono::duration_cast<std::chrono::seconds>(now).count(), steady_clock().now(),
                       nullptr);
}

void admit(const Caller& self, std::uint32_t rows) {
  const Caller::Admission admission = self.admit(rows, steady_clock().now());
  if (admission.refused_by == Quota::none) return;
  raise_refused(Status::overloaded, admission.text(self), admission.retry_after_ms);
}

nb::dict usage(const Caller& self) {
  std::uint64_t requests = 0, rows = 0, denied = 0;
  std::array<std::uint64_t, kQuotaNames.size()> refused{};
  self.usage().counts.each([&](const CallerUsage::Counts& counts) {
    requests += counts.requests.load(std::memory_order_relaxed);
    rows += counts.rows.load(std::memory_order_relaxed);
    denied += counts.denied.load(std::memory_order_relaxed);
    for (std::size_t i = 0; i < refused.size(); ++i)
      refused[i] += counts.refused[i].load(std::memory_order_relaxed);
  });
  nb::dict refusals, result;
  refusals["not_allowed"] = denied;
  for (std::size_t i = 1; i < refused.size(); ++i) refusals[kQuotaNames[i]] = refused[i];
  result["requests"] = requests;
  result["rows"] = rows;
  result["refused"] = refusals;
  return result;
}

void publish(Callers& self, std::vector<CallerRules> rules,
             const std::vector<std::pair<nb::bytes, unsigned>>& proxies,
             std::vector<std::string> proxy_names) {
  std::vector<Network> networks;
  for (const auto& [address, bits] : proxies) {
    Network network{{}, bits};
    if (address.size() != network.address.size() || bits > 128)
      throw nb::value_error("proxies: expected 16 bytes");
    std::memcpy(network.address.data(), address.c_str(), address.size());
    networks.push_back(network);
  }
  self.publish(std::move(rules), std::move(networks), std::move(proxy_names));
}

}  // namespace

void register_access(nb::module_& m) {
  nb::enum_<Action>(m, "Action", "What a caller may do.")
      .value("predict", Action::predict)
      .value("describe", Action::describe)
      .value("admin", Action::admin)
      .value("metrics", Action::metrics);
  nb::class_<CallerRules>(m, "CallerRules")
      .def(
          "__init__",
          [](CallerRules* self, std::string name, const std::vector<Action>& actions,
             std::vector<std::string> models, std::int64_t expires_s, double requests_per_s,
             double rows_per_s, std::uint32_t max_in_flight, double weight, nb::bytes digest,
             std::vector<std::string> certificates, std::vector<std::string> subjects) {
            std::uint8_t all = 0;
            for (const Action action : actions) all |= static_cast<std::uint8_t>(action);
            new (self) CallerRules{std::move(name),
                                   all,
                                   std::move(models),
                                   expires_s,
                                   requests_per_s,
                                   rows_per_s,
                                   max_in_flight,
                                   weight,
                                   std::string(digest.c_str(), digest.size()),
                                   std::move(certificates),
                                   std::move(subjects)};
          },
          nb::kw_only(), nb::arg("name"), nb::arg("actions"), nb::arg("models"), nb::arg("expires_s") = 0,
          nb::arg("requests_per_s") = 0.0, nb::arg("rows_per_s") = 0.0, nb::arg("max_in_flight") = 0,
          nb::arg("weight") = 1.0, nb::arg("digest") = nb::bytes("", 0),
          nb::arg("certificates") = std::vector<std::string>(),
          nb::arg("subjects") = std::vector<std::string>());
  nb::class_<Caller>(m, "Caller", "One caller that the server knows.")
      .def_prop_ro("name", [](const Caller& self) { return self.rules().name; })
      .def("allows", &Caller::allows, nb::arg("action"), nb::arg("model") = "",
           "Without a model: for all models.")
      .def("admit", &admit, nb::arg("rows"), "Take a request off the quotas. Raises Refused.")
      .def(
          "release",
          [](const Caller& self) {
            if (self.must_release()) self.release();
          },
          "A request that was admitted has ended.")
      .def("count_denied", &Caller::count_denied)
      .def("usage", &usage, "Requests, rows, and refusals by reason.");
  nb::class_<Identity>(m, "Identity", "Whose call it is.")
      .def_prop_ro("caller",
                   [](const Identity& self) { return std::const_pointer_cast<Caller>(self.caller); })
      .def_prop_ro("code", &Identity::grpc_code)
      .def_prop_ro("text", &Identity::text)
      .def_ro("retry_after_ms", &Identity::retry_after_ms);
  nb::class_<Callers>(m, "Callers", "All callers that the server knows.")
      .def(nb::init<>())
      .def("publish", &publish, nb::arg("rules"), nb::arg("proxies"), nb::arg("proxy_names"),
           "Replace all of them in one step. What callers have used is kept, by name.")
      .def("identify", &identify, nb::kw_only(), nb::arg("key").none(), nb::arg("subject").none(),
           nb::arg("certificate_names"), nb::arg("peer_address"))
      .def("all", [](const Callers& self) {
        std::vector<std::shared_ptr<Caller>> all;
        const auto table = self.table();
        for (const CallerRef& each : table->callers()) all.push_back(std::const_pointer_cast<Caller>(each));
        return all;
      });
  nb::class_<AllowedHosts>(m, "AllowedHosts", "Which Host headers a port answers to.")
      .def(nb::init<std::vector<std::string>>(), nb::arg("names"))
      .def("allows", &AllowedHosts::allows, nb::arg("host"));
}

}  // namespace fused_mlp
