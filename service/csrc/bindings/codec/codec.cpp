// SPDX-License-Identifier: Apache-2.0
// The messages of both prediction APIs, for the Python front. Registration only: the rules are in codec/.
#include "codec/codec.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string_view.h>

#include "bindings/engine/completion.hpp"
#include "bindings/engine/engine.hpp"
#include "bindings/errors.hpp"
#include "bindings/register.hpp"

namespace nb = nanobind;

namespace fused_mlp {
namespace {

// A decoded request, the bytes it points into, and what is wrong with it.
struct PythonInput {
  nb::bytes message;
  PredictInput input;
  std::string error;
  ArmMetadata metadata = {};  // of its call
};

nb::bytes to_bytes(const void* data, size_t size) { return nb::bytes(data, size); }

PythonInput decode(const Codec& codec, nb::bytes message) {
  PythonInput result{std::move(message), {}, {}};
  const auto* data = static_cast<const uint8_t*>(result.message.data());
  result.error = codec.decode(data, result.message.size(), result.input);
  return result;
}

nb::bytes encode(const Codec& codec, const PythonInput& request, const PythonRoute& route,
                 const TicketResult& result) {
  ByteBuffer out;
  const Results results{PyBytes_AS_STRING(result.data.get()), /*converted=*/true};
  codec.encode(request.input, *route.route.entry, route.route.variant, result.outcome(), results, out);
  return to_bytes(out.data(), out.size());
}

nb::bytes encode_error(const Codec& codec, std::string_view request_id, int code, std::string_view text) {
  ByteBuffer out;
  codec.encode_error(request_id, code, text, out);
  return to_bytes(out.data(), out.size());
}

void complete_arm(PythonInput& self, std::optional<std::string_view> arm,
                  std::optional<std::string_view> variant) {
  if (arm) self.metadata.read_arm(*arm);
  if (variant) self.metadata.read_variant(*variant);
  if (!self.metadata.problem().empty()) raise_refused(Status::invalid_input, self.metadata.problem());
  self.input.arm.complete(self.metadata.name());
}

uint32_t check_rows(PythonInput& self, const PythonRoute& route) {
  const TensorCheck check = self.input.check(*route.route.entry);
  if (!check.ok()) raise_refused(Status::invalid_input, check.error);
  if (route.route.entry->layout == nullptr) return check.rows;
  std::string problem;
  {
    const nb::gil_scoped_release release;
    problem = self.input.pack(*route.route.entry, check.rows);
    if (problem.empty()) self.input.repeat_shared(check.rows);
  }
  if (!problem.empty()) raise_refused(Status::invalid_input, problem);
  return check.rows;
}

}  // namespace

void register_codec(nb::module_& m) {
  nb::enum_<DType>(m, "DType", "Element types on the wire.")
      .value("fp32", DType::fp32)
      .value("fp16", DType::fp16)
      .value("bf16", DType::bf16)
      .value("fp64", DType::fp64);

  nb::class_<PythonInput>(m, "PredictInput", "A decoded prediction request of either API.")
      .def_prop_ro("error", [](const PythonInput& self) { return std::string_view(self.error); })
      .def_prop_ro("request_id", [](const PythonInput& self) { return self.input.request_id; })
      .def_prop_ro("short_id", [](const PythonInput& self) { return self.input.short_id(); })
      .def_prop_ro("model", [](const PythonInput& self) { return self.input.model; })
      .def_prop_ro("version", [](const PythonInput& self) { return self.input.arm.version; })
      .def_prop_ro("variant", [](const PythonInput& self) { return self.input.arm.variant; })
      .def_prop_ro("label", [](const PythonInput& self) { return self.input.arm.label; })
      .def("complete_arm", &complete_arm, nb::arg("arm").none(), nb::arg("variant").none(),
           "What the metadata of its call says where the message says nothing; raises Refused.")
      .def_prop_ro("outputs",
                   [](const PythonInput& self) {
                     nb::list names;
                     for (const std::string_view name : self.input.outputs) names.append(name);
                     return names;
                   })
      .def_prop_ro("inputs",
                   [](const PythonInput& self) {
                     nb::list names;
                     for (const WireTensor& tensor : self.input.tensors) names.append(tensor.name);
                     return names;
                   })
      .def_prop_ro("all_outputs", [](const PythonInput& self) { return self.input.all_outputs; })
      .def_prop_ro("shape",
                   [](const PythonInput& self) {
                     nb::list shape;
                     for (const int64_t size : self.input.shape()) shape.append(size);
                     return shape;
                   })
      .def_prop_ro("dtype", [](const PythonInput& self) { return self.input.dtype; })
      .def_prop_ro(
          "data",
          [](const PythonInput& self) { return to_bytes(self.input.data.data(), self.input.data.size()); })
      .def_prop_ro("typed", [](const PythonInput& self) { return self.input.typed; })
      .def("check_rows", &check_rows, nb::arg("route"),
           "The rows; raises Refused when shape, dtype and bytes do not fit each other or the model.");

  nb::class_<Codec>(m, "Codec", "Reads and writes the messages of one prediction RPC.")
      .def("decode", &decode, nb::arg("message"))
      .def("encode", &encode, nb::arg("request"), nb::arg("route"), nb::arg("result"))
      .def("encode_error", &encode_error, nb::arg("request_id"), nb::arg("code"), nb::arg("text"));
  m.attr("PREDICT_CODEC") = nb::cast(&predict_codec(), nb::rv_policy::reference);
  m.attr("INFER_CODEC") = nb::cast(&infer_codec(), nb::rv_policy::reference);
  m.attr("INFER_STREAM_CODEC") = nb::cast(&infer_stream_codec(), nb::rv_policy::reference);
}

}  // namespace fused_mlp
