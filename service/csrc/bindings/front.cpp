// SPDX-License-Identifier: Apache-2.0
// The Python module fused_mlp.service._front: the native front. Registration only: the rules are in
// server.hpp and bridge.hpp; the stub is service/_front.pyi. It takes engines and routers of the module
// _engine.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "bindings/engine/engine.hpp"
#include "bindings/errors.hpp"
#include "front/call/metadata.hpp"
#include "front/http2/nghttp2_check.hpp"
#include "front/methods/application.hpp"
#include "front/methods/bridge.hpp"
#include "front/rest/rest_call.hpp"
#include "front/server/server.hpp"

namespace nb = nanobind;

namespace fused_mlp {
namespace {

using namespace front;

// The server and the bridge. The server's loops must end before the bridge does.
class FrontServer {
 public:
  // Both or neither of engine and router; they outlive this (keep_alive below).
  FrontServer(const ServerOptions& options, PythonEngine* engine, const Router* router,
              std::vector<PythonRpc> rpcs, RestOptions rest, Callers* callers)
      : engine_(engine),
        router_(router),
        callers_(callers),
        rpcs_(std::move(rpcs)),
        rest_(std::move(rest)),
        bridge(options.limits.max_control_bytes),
        server(options) {}
  ~FrontServer() {
    const nb::gil_scoped_release unlocked;
    server.stop();
  }

  void start() {
    server.start([this](Loop& loop) {
      if (engine_ == nullptr || router_ == nullptr) {
        return rpcs_.empty() ? make_echo_application() : make_python_application(loop, bridge, rpcs_);
      }
      return make_service_application(loop, engine_->engine(), *router_, bridge, health, rpcs_, rest_,
                                      callers_);
    });
  }

 private:
  PythonEngine* engine_;
  const Router* router_;
  Callers* callers_;
  std::vector<PythonRpc> rpcs_;
  RestOptions rest_;

 public:
  Bridge bridge;
  HealthTable health;
  Server server;  // last: it ends first
};

nb::object metadata_value(const std::string& name, const std::string& value) {
  if (is_binary_name(name)) return nb::bytes(value.data(), value.size());
  return nb::steal(PyUnicode_DecodeLatin1(value.data(), static_cast<Py_ssize_t>(value.size()), nullptr));
}

nb::list metadata_list(const Metadata& metadata) {
  nb::list list;
  for (const auto& [name, value] : metadata)
    list.append(nb::make_tuple(text_of(name), metadata_value(name, value)));
  return list;
}

nb::list name_list(const std::vector<std::string>& names) {
  nb::list list;
  for (const std::string& name : names) list.append(text_of(name));
  return list;
}

// Bytes charged to each budget, and its limit.
nb::dict memory(FrontServer& self) {
  const Budgets& budgets = self.server.budgets();
  nb::dict result;
  const auto add = [&](const char* name, const Budget& budget) {
    result[name] = nb::make_tuple(budget.used(), budget.limit());
  };
  add("requests", budgets.requests);
  add("answers", budgets.answers);
  add("calls", budgets.calls);
  add("control", self.bridge.budget());
  return result;
}

using Counter = std::atomic<uint64_t>;

constexpr std::pair<const char*, Counter Stats::*> kCounters[] = {
    {"accepted", &Stats::accepted},
    {"connections", &Stats::connections},
    {"calls", &Stats::calls},
    {"failures", &Stats::failures},
    {"open_calls", &Stats::open_calls},
    {"received_bytes", &Stats::received_bytes},
    {"sent_bytes", &Stats::sent_bytes},
    {"received_resets", &Stats::received_resets},
    {"sent_resets", &Stats::sent_resets},
    {"tls_handshakes", &Stats::tls_handshakes}};

// Sums over all loops.
nb::dict stats(FrontServer& self) {
  const auto total = [&](auto counter_of) {
    uint64_t sum = 0;
    for (const auto& loop : self.server.loops()) {
      sum += counter_of(loop->stats()).load(std::memory_order_relaxed);
    }
    return sum;
  };
  const auto each = [&](auto counters, auto add) {
    for (size_t i = 0; i < std::tuple_size_v<std::remove_cvref_t<decltype(Stats().*counters)>>; ++i) {
      add(i, total([&](Stats& s) -> Counter& { return (s.*counters)[i]; }));
    }
  };
  nb::dict ended, refused, shortages, tls_failures, result;
  each(&Stats::ended, [&](size_t i, uint64_t count) { ended[kEnds[i].label] = count; });
  each(&Stats::shortages, [&](size_t i, uint64_t count) { shortages[kShortages[i].label] = count; });
  each(&Stats::tls_failures, [&](size_t i, uint64_t count) { tls_failures[kTlsFailureNames[i]] = count; });
  each(&Stats::refused, [&](size_t code, uint64_t count) {
    if (code != 0 && count != 0) refused[nb::int_(code)] = count;
  });
  for (const auto& [name, counter] : kCounters) {
    result[name] = total([&](Stats& s) -> Counter& { return s.*counter; });
  }
  result["ended"] = ended;
  result["refused"] = refused;
  result["memory"] = memory(self);
  result["shortages"] = shortages;
  result["tls_failures"] = tls_failures;
  return result;
}

void register_limits(nb::module_& m) {
  nb::class_<Limits>(m, "Limits", "Every limit of the native front; times in seconds, 0 for none.")
      .def(nb::init<>())
      .def_rw("max_message_bytes", &Limits::max_message_bytes)
      .def_rw("max_header_bytes", &Limits::max_header_bytes)
      .def_rw("max_concurrent_streams", &Limits::max_concurrent_streams)
      .def_rw("max_output_bytes", &Limits::max_output_bytes)
      .def_rw("max_control_calls", &Limits::max_control_calls)
      .def_rw("max_connections", &Limits::max_connections)
      .def_rw("max_connections_per_peer", &Limits::max_connections_per_peer)
      .def_rw("max_buffered_bytes", &Limits::max_buffered_bytes)
      .def_rw("max_total_output_bytes", &Limits::max_total_output_bytes)
      .def_rw("max_call_bytes", &Limits::max_call_bytes)
      .def_rw("max_control_bytes", &Limits::max_control_bytes)
      .def_rw("max_resets_per_s", &Limits::max_resets_per_s)
      .def_rw("max_pings_per_s", &Limits::max_pings_per_s)
      .def_rw("max_settings_per_s", &Limits::max_settings_per_s)
      .def_rw("max_control_frames_per_s", &Limits::max_control_frames_per_s)
      .def_rw("handshake_timeout_s", &Limits::handshake_timeout_s)
      .def_rw("receive_timeout_s", &Limits::receive_timeout_s)
      .def_rw("send_timeout_s", &Limits::send_timeout_s)
      .def_rw("keepalive_s", &Limits::keepalive_s)
      .def_rw("keepalive_timeout_s", &Limits::keepalive_timeout_s)
      .def_rw("idle_timeout_s", &Limits::idle_timeout_s)
      .def_rw("first_message_timeout_s", &Limits::first_message_timeout_s)
      .def_rw("control_idle_timeout_s", &Limits::control_idle_timeout_s)
      .def_rw("max_connection_age_s", &Limits::max_connection_age_s);
}

void register_events(nb::module_& m) {
  nb::enum_<EventKind>(m, "CallEventKind", "What happened to a call that Python answers.")
      .value("start", EventKind::start)
      .value("message", EventKind::message)
      .value("half_close", EventKind::half_close)
      .value("cancel", EventKind::cancel)
      .value("writable", EventKind::writable)
      .value("failure", EventKind::failure)
      .value("bad_end", EventKind::bad_end)
      .value("shortage", EventKind::shortage)
      .value("wanted", EventKind::wanted);
  nb::class_<Event>(m, "CallEvent")
      .def_ro("kind", &Event::kind)
      .def_ro("call", &Event::call)
      .def_prop_ro("path", [](const Event& event) { return text_of(event.path); })
      .def_ro("deadline_ns", &Event::deadline_ns)
      .def_prop_ro("metadata", [](const Event& event) { return metadata_list(event.metadata); })
      .def_prop_ro("certificate_names", [](const Event& event) { return name_list(event.certificate_names); })
      .def_ro("peer_address", &Event::peer_address)
      .def_prop_ro("body",
                   [](const Event& event) { return nb::bytes(event.body.data(), event.body.size()); });
}

void make_server(FrontServer* self, PythonEngine* engine, const Router* router, int listener,
                 int rest_listener, unsigned loops, const Limits& limits,
                 const std::vector<std::pair<std::string, bool>>& rpcs, std::string certificate,
                 std::string key, std::string client_ca, std::string crl,
                 std::vector<std::string> cors_origins, Callers* callers, const AllowedHosts& hosts) {
  ServerOptions options{
      listener, rest_listener, loops, limits,
      TlsFiles{std::move(certificate), std::move(key), std::move(client_ca), std::move(crl)}};
  std::vector<PythonRpc> list;
  for (const auto& [path, streams] : rpcs) list.push_back({path, streams});
  new (self) FrontServer(options, engine, router, std::move(list),
                         RestOptions{rest_listener >= 0, std::move(cors_origins), hosts}, callers);
}

void publish_health(FrontServer& self,
                    const std::vector<std::tuple<std::string, uint8_t, Metadata, bool>>& answers) {
  HealthTable::Answers table;
  for (const auto& [name, status, trailers, model] : answers)
    table.emplace(name, HealthAnswer{status, trailers, model});
  self.health.publish(std::move(table));
}

// Calls a method of a part of the front.
template <class Part, class Result, class... Arguments>
auto at(Part FrontServer::*part, Result (Part::*method)(Arguments...)) {
  return [=](FrontServer& self, Arguments... arguments) -> Result {
    return (self.*part.*method)(std::move(arguments)...);
  };
}

void register_server(nb::module_& m) {
  const auto unlocked = nb::call_guard<nb::gil_scoped_release>();
  nb::class_<FrontServer>(m, "FrontServer", "gRPC from socket to engine. Without an engine it echoes.")
      .def("__init__", &make_server, nb::kw_only(), nb::arg("engine").none() = nb::none(),
           nb::arg("router").none() = nb::none(), nb::arg("listener") = -1, nb::arg("rest_listener") = -1,
           nb::arg("loops") = 1, nb::arg("limits") = Limits(),
           nb::arg("rpcs") = std::vector<std::pair<std::string, bool>>(), nb::arg("certificate") = "",
           nb::arg("key") = "", nb::arg("client_ca") = "", nb::arg("crl") = "",
           nb::arg("cors_origins") = std::vector<std::string>(), nb::arg("callers").none() = nb::none(),
           nb::arg("hosts") = AllowedHosts(), nb::keep_alive<1, 2>(), nb::keep_alive<1, 3>(),
           nb::keep_alive<1, 14>())
      .def("start", &FrontServer::start)
      .def("listen", at(&FrontServer::server, &Server::listen))
      .def("begin_drain", at(&FrontServer::server, &Server::begin_drain))
      .def(
          "wait_drained",
          [](FrontServer& self, double timeout_s) {
            return self.server.wait_drained(std::chrono::nanoseconds(static_cast<int64_t>(timeout_s * 1e9)));
          },
          nb::arg("timeout_s"), unlocked)
      .def("stop", at(&FrontServer::server, &Server::stop), unlocked)
      .def("reload_tls", at(&FrontServer::server, &Server::reload_tls), unlocked)
      .def("allow_messages", at(&FrontServer::server, &Server::allow_messages), nb::arg("max_bytes"))
      .def("stats", &stats)
      .def("fileno", [](FrontServer& self) { return self.bridge.fileno(); })
      .def("drain", at(&FrontServer::bridge, &Bridge::drain), nb::arg("most") = SIZE_MAX)
      .def("publish_health", &publish_health, nb::arg("answers"))
      .def("retry_waiting", at(&FrontServer::server, &Server::wake_applications))
      .def(
          "send",
          [](FrontServer& self, uint64_t call, nb::bytes message) {
            self.bridge.send(call, std::string(message.c_str(), message.size()));
          },
          nb::arg("call"), nb::arg("message"))
      .def("finish", at(&FrontServer::bridge, &Bridge::finish), nb::arg("call"), nb::arg("code"),
           nb::arg("text") = "", nb::arg("trailers") = Metadata())
      .def("message_done", at(&FrontServer::bridge, &Bridge::message_done), nb::arg("call"));
}

}  // namespace
}  // namespace fused_mlp

NB_MODULE(_front, m) {
  m.doc() = "gRPC from socket to engine, on nghttp2.";
  nb::set_leak_warnings(false);  // a server that exits at once does not destroy its front, on purpose
  nb::module_::import_("fused_mlp.service._engine");  // registers Engine and Router
  fused_mlp::register_limits(m);
  fused_mlp::register_events(m);
  fused_mlp::register_server(m);
  m.def("rest_missing", [] {
    const char* missing = fused_mlp::front::Http1::missing();
    return missing == nullptr ? "" : missing;
  });
  m.def("http_status_of", &fused_mlp::front::http_status_of, nb::arg("code"));
  m.def("nghttp2_bounds_continuations", &fused_mlp::front::nghttp2_bounds_continuations);
}
