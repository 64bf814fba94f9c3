// SPDX-License-Identifier: Apache-2.0
#include "bindings/engine/engine.hpp"

#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <stdexcept>

#include "access/caller.hpp"
#include "bindings/engine/completion.hpp"
#include "bindings/errors.hpp"
#include "bindings/register.hpp"
#include "bindings/telemetry/metrics.hpp"
#include "engine/run/background.hpp"
#include "engine/run/busy_threads.hpp"

namespace nb = nanobind;

namespace fused_mlp {

namespace {

std::unique_ptr<Kernel> make_kernel(nb::handle kernel, const LaneOptions& options) {
  if (PyCapsule_CheckExact(kernel.ptr())) {
    auto* api =
        static_cast<const fused_mlp_kernel*>(PyCapsule_GetPointer(kernel.ptr(), FUSED_MLP_KERNEL_CAPSULE));
    if (!api) throw nb::python_error();  // another kind of capsule: Python has set the error
    if (api->abi != FUSED_MLP_KERNEL_ABI) {
      throw std::invalid_argument("kernel: expected interface version " +
                                  std::to_string(FUSED_MLP_KERNEL_ABI) + ", got " + std::to_string(api->abi) +
                                  "; rebuild the kernels");
    }
    if (api->in_features != options.in_features || api->out_features != options.out_features) {
      throw std::invalid_argument("kernel: expected " + std::to_string(options.in_features) + " inputs and " +
                                  std::to_string(options.out_features) + " outputs, got " +
                                  std::to_string(api->in_features) + " and " +
                                  std::to_string(api->out_features));
    }
    return std::make_unique<CapsuleKernel>(api, hold(kernel.ptr()));
  }
  if (!PyCallable_Check(kernel.ptr())) {
    throw nb::type_error("kernel: expected a kernel capsule or a callable run(x, y) -> str");
  }
  return make_python_kernel(hold(kernel.ptr()), options.in_features, options.out_features);
}

std::shared_ptr<Lane> add_lane(PythonEngine& self, nb::handle kernel, std::size_t in_features,
                               std::size_t out_features, std::string name, std::uint32_t max_batch_rows,
                               std::uint32_t max_wait_us, std::uint32_t queue_rows,
                               std::uint32_t target_queue_ms, bool one_core, std::string model,
                               std::shared_ptr<LaneMetrics> metrics) {
  LaneOptions options{std::move(name), in_features,      out_features,      max_batch_rows,
                      max_wait_us,     queue_rows,       target_queue_ms,   {},
                      one_core,        std::move(model), std::move(metrics)};
  if (in_features == 0 || out_features == 0 || max_batch_rows == 0 || queue_rows == 0) {
    throw std::invalid_argument("lane: expected features, max_batch_rows and queue_rows of at least 1");
  }
  std::unique_ptr<Kernel> made = make_kernel(kernel, options);
  if (made->needs_worker() && self.engine().workers() == 0) {
    throw std::invalid_argument(
        "lane: a kernel that is called through Python or waits for a GPU needs an engine with at least 1 "
        "worker");
  }
  const nb::gil_scoped_release unlocked;
  if (!made->needs_worker()) {
    options.cost = measure_cost(*made, in_features, out_features, self.engine().clock());
  }
  return self.engine().add_lane(std::move(options), std::move(made));
}

TicketHandle submit(PythonEngine& self, Lane& lane, nb::handle data, DType dtype, std::uint32_t rows,
                    Nanos deadline_ns, nb::handle token, const CompletionQueue& queue, std::uint64_t trace_id,
                    const Caller* caller) {
  Py_buffer input;
  if (PyObject_GetBuffer(data.ptr(), &input, PyBUF_SIMPLE) != 0) throw nb::python_error();
  // Fronts have validated this already. Checked again because a wrong size would read outside of the buffer.
  const auto bytes = static_cast<std::uint64_t>(input.len);
  const std::uint64_t expected = std::uint64_t{rows} * lane.options.in_features * dtype_size(dtype);
  if (rows == 0 || bytes != expected) {
    PyBuffer_Release(&input);
    raise_refused(Status::invalid_input, "data: expected " + std::to_string(expected) + " bytes for " +
                                             std::to_string(rows) + " rows, got " + std::to_string(bytes));
  }
  auto ticket = make_ref<PythonTicket>(rows, dtype, lane, input, token.ptr(), queue.channel);
  if (!ticket->has_output()) throw nb::python_error();  // out of memory
  ticket->deadline_ns = deadline_ns;
  ticket->trace_id = trace_id;
  if (caller != nullptr) {
    ticket->flow = caller->flow();
    ticket->weight = caller->rules().weight;
  }
  TicketHandle handle{ticket};
  const Status status = self.engine().submit(lane, Ref<Ticket>(std::move(ticket)));
  if (status != Status::ok) raise_refused(status, lane.refusal_text(status), lane.retry_after_ms());
  return handle;
}

bool wait_idle(PythonEngine& self, double timeout_s) {
  const nb::gil_scoped_release unlocked;
  return self.engine().wait_idle(std::chrono::nanoseconds(static_cast<std::int64_t>(timeout_s * 1e9)));
}

template <auto kHook>
nb::object get_hook(PythonEngine& self) {
  const std::shared_ptr<PyObject>& callable = (self.*kHook)().callable;
  return callable ? nb::borrow(callable.get()) : nb::none();
}

template <auto kHook>
void set_hook(PythonEngine& self, nb::handle callable) {
  (self.*kHook)().callable = callable.is_none() ? nullptr : hold(callable.ptr());
}

void register_lane(nb::module_& m) {
  nb::class_<Lane>(m, "Lane", "One kernel, its bounded queue and its metrics.")
      .def_prop_ro("name", [](const Lane& lane) { return lane.options.name; })
      .def_prop_ro("queue_rows", [](const Lane& lane) { return lane.options.queue_rows; })
      .def_prop_rw(
          "weight", [](const Lane& lane) { return lane.account->weight.load(std::memory_order_relaxed); },
          [](Lane& lane, double weight) { lane.account->weight.store(weight, std::memory_order_relaxed); },
          "The share of its model, all its lanes together, relative to other models that have work.")
      .def("record", &Lane::record, nb::arg("grpc_code"), nb::arg("duration_ns"),
           "Count one finished request.")
      .def("add_exemplars", &Lane::add_exemplars, nb::arg("trace"), nb::arg("duration_ns"),
           nb::arg("queue_ns"), nb::arg("compute_ns"))
      .def(
          "refuse_invalid", [](Lane& lane) { lane.metrics->refuse(Refusal::invalid_input); },
          "Count a request with invalid input.")
      .def_prop_ro("used", [](const Lane& lane) { return lane.metrics->used(); })
      .def_prop_ro("last_used_ns", [](const Lane& lane) { return lane.last_used_ns.load(); })
      .def_prop_ro("in_flight", [](const Lane& lane) { return lane.metrics->in_flight(); })
      .def_prop_ro("queued_rows", [](const Lane& lane) { return lane.queued_rows.load(); })
      .def(
          "latencies", [](Lane& lane) { return lane.metrics->compare_latencies().snapshot(); },
          "Answered requests by LATENCY_BOUNDS_NS, since the first call.")
      .def("snapshot", [](const Lane& lane) { return snapshot(*lane.metrics); });
}

void register_shadow(nb::module_& m) {
  nb::enum_<Verdict> verdicts(m, "Verdict");
  for (std::size_t i = 0; i < kVerdictNames.size(); ++i) {
    verdicts.value(kVerdictNames[i], static_cast<Verdict>(i));
  }
  nb::class_<Shadow>(m, "Shadow", "Two lanes, compared on a share of their batches.")
      .def_prop_ro("name", &Shadow::name)
      .def_prop_ro("share", &Shadow::share)
      .def_prop_ro("tolerance", &Shadow::tolerance)
      .def("record", &Shadow::record, nb::arg("verdict"),
           "Count a verdict. True for the first of its kind since restart().")
      .def("restart", &Shadow::restart)
      .def_prop_ro("epoch", &Shadow::epoch, "How many times restart() was called.")
      .def("snapshot", [](const Shadow& shadow) { return snapshot(shadow.metrics()); });
}

}  // namespace

void register_engine(nb::module_& m) {
  m.def("lower_thread_priority", lower_thread_priority);
  m.def("release_free_memory", release_free_memory, nb::call_guard<nb::gil_scoped_release>());
  m.def("keep_little_free_memory", keep_little_free_memory);
  m.def("allocated_bytes", allocated_bytes, nb::call_guard<nb::gil_scoped_release>());
  m.def(
      "use_cores", [](unsigned count) { usable_cores.store(count, std::memory_order_relaxed); },
      nb::arg("count"));
  nb::class_<ManualClock>(m, "ManualClock", "Stands still until advanced: for tests.")
      .def(nb::init<Nanos>(), nb::arg("start_ns") = 1'000'000'000)
      // Waking the engine takes its mutex: not with the GIL.
      .def("advance", &ManualClock::advance, nb::arg("by_ns"), nb::call_guard<nb::gil_scoped_release>());
  register_lane(m);
  register_shadow(m);
  nb::class_<PythonEngine>(m, "Engine", "Queues, batches and runs requests.")
      .def(nb::init<unsigned, std::shared_ptr<ManualClock>>(), nb::arg("workers") = 1,
           nb::arg("clock") = nb::none())
      .def("add_lane", &add_lane, nb::kw_only(), nb::arg("kernel"), nb::arg("in_features"),
           nb::arg("out_features"), nb::arg("name") = "", nb::arg("max_batch_rows") = 64,
           nb::arg("max_wait_us") = 0, nb::arg("queue_rows") = 4096, nb::arg("target_queue_ms") = 0,
           nb::arg("one_core") = false, nb::arg("model") = "", nb::arg("metrics") = nb::none(),
           "A lane for a kernel capsule or a callable run(x, y) -> strategy.")
      .def(
          "remove_lane",
          [](PythonEngine& self, const std::shared_ptr<Lane>& lane) { self.engine().remove_lane(lane); },
          nb::arg("lane"), "Run what is queued; the last reference to the lane frees its kernel.")
      .def(
          "add_shadow",
          [](PythonEngine& self, std::string name, const std::shared_ptr<Lane>& fused,
             const std::shared_ptr<Lane>& unfused, bool cpu_time, bool versions,
             std::shared_ptr<ShadowMetrics> metrics) {
            return self.engine().add_shadow(
                std::move(name), fused, unfused, cpu_time ? ShadowTime::cpu : ShadowTime::elapsed,
                versions ? ShadowKind::versions : ShadowKind::variants, std::move(metrics));
          },
          nb::arg("name"), nb::arg("fused"), nb::arg("unfused"), nb::arg("cpu_time") = true,
          nb::arg("versions") = false, nb::arg("metrics") = nb::none(), "Pair two lanes for comparison.")
      .def(
          "set_shadow",
          [](PythonEngine& self, Shadow& shadow, double share, double tolerance) {
            self.engine().set_shadow(shadow, share, tolerance);
          },
          nb::arg("shadow"), nb::arg("share"), nb::arg("tolerance"), nb::call_guard<nb::gil_scoped_release>(),
          "Run that share of the batches again on the other variant, after the responses.")
      .def("submit", &submit, nb::arg("lane"), nb::arg("data"), nb::arg("dtype"), nb::arg("rows"),
           nb::arg("deadline_ns"), nb::arg("token").none(), nb::arg("queue"), nb::arg("trace_id") = 0,
           nb::arg("caller").none() = nb::none(),
           "Queue rows; the result arrives in `queue` with `token`. Raises Refused.")
      .def("begin_drain", [](PythonEngine& self) { self.engine().begin_drain(); })
      .def("wait_idle", &wait_idle, nb::arg("timeout_s"))
      .def(
          "stop", [](PythonEngine& self) { self.engine().stop(); }, nb::call_guard<nb::gil_scoped_release>())
      .def(
          "now", [](PythonEngine& self) { return self.engine().clock().now(); },
          "The time of the engine's clock, in ns; deadlines refer to it.")
      .def(
          "record_unrouted",
          [](PythonEngine& self, int code, Nanos ns) { self.engine().unrouted().record(code, ns); },
          nb::arg("grpc_code"), nb::arg("duration_ns"), "Count a request without a lane.")
      .def(
          "unrouted", [](PythonEngine& self) { return snapshot(self.engine().unrouted()); },
          "The requests counted by record_unrouted.")
      .def_prop_rw("on_kernel_error", get_hook<&PythonEngine::errors>, set_hook<&PythonEngine::errors>,
                   nb::arg("callable").none())
      .def_prop_rw("on_dispute", get_hook<&PythonEngine::disputes>, set_hook<&PythonEngine::disputes>,
                   nb::arg("callable").none());

  nb::module_::import_("atexit").attr("register")(
      nb::cpp_function(&PythonEngine::stop_all, nb::call_guard<nb::gil_scoped_release>()));
}

}  // namespace fused_mlp
