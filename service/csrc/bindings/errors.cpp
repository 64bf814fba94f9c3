// SPDX-License-Identifier: Apache-2.0
#include "bindings/errors.hpp"

#include "bindings/register.hpp"

namespace nb = nanobind;

namespace fused_mlp {

namespace {
// Borrowed from the module, which is never unloaded.
PyObject* refused_type = nullptr;
}  // namespace

void raise_refused(Status status, const std::string& text, std::uint32_t retry_after_ms, nb::object lane,
                   std::int64_t version) {
  const nb::handle type = refused_type;
  nb::object error = type(text_of(text));
  error.attr("status") = nb::cast(status);
  error.attr("retry_after_ms") = retry_after_ms;
  error.attr("lane") = lane;
  error.attr("version") = version;
  PyErr_SetObject(type.ptr(), error.ptr());
  throw nb::python_error();
}

void register_errors(nb::module_& m) {
  auto status = nb::enum_<Status>(m, "Status", "How a request ended.");
  for (int i = 0; i < kStatusCount; ++i) {
    status.value(status_name(static_cast<Status>(i)), static_cast<Status>(i));
  }
  m.def("grpc_code", &grpc_code, nb::arg("status"), "The number of google.rpc.Code for a status.");
  m.def(
      "quote_name", [](const char* name) { return nb::str(quote_name(name).c_str()); }, nb::arg("name"),
      "Make a name from a request safe to send back.");

  refused_type = PyErr_NewExceptionWithDoc(
      "fused_mlp.service._engine.Refused",
      "A request was not accepted: .status says why, str() may be sent to the client.", nullptr, nullptr);
  m.attr("Refused") = nb::handle(refused_type);
}

}  // namespace fused_mlp
