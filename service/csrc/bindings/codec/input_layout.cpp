// SPDX-License-Identifier: Apache-2.0
// The named inputs of a model, from service/catalog/versions/input_layout.py. Registration only: the rules
// are in codec/.
#include "codec/input_layout.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings/register.hpp"

namespace nb = nanobind;

namespace fused_mlp {

void register_input_layout(nb::module_& m) {
  nb::enum_<InputKind>(m, "InputKind", "What an input takes.")
      .value("floats", InputKind::floats)
      .value("whole", InputKind::whole)
      .value("strings", InputKind::strings);

  nb::enum_<InputRule::Op>(m, "RuleOp", "What a rule does to whole numbers.")
      .value("add", InputRule::Op::add)
      .value("divide", InputRule::Op::divide)
      .value("modulo", InputRule::Op::modulo)
      .value("remainder", InputRule::Op::remainder)
      .value("clip", InputRule::Op::clip)
      .value("replace", InputRule::Op::replace)
      .value("multiply", InputRule::Op::multiply);

  nb::class_<Vocabulary>(m, "Vocabulary", "The words, or numbers, that an input knows.")
      .def(nb::init<std::vector<std::string>, std::int64_t>(), nb::arg("known"), nb::arg("unknown") = -1)
      .def(nb::init<const std::vector<std::int64_t>&, std::int64_t>(), nb::arg("numbers"),
           nb::arg("unknown") = -1);

  nb::class_<InputField>(m, "InputField", "One reading of an input.")
      .def(
          "__init__",
          [](InputField* self, std::int64_t size,
             const std::vector<std::pair<InputRule::Op, std::vector<std::int64_t>>>& rules,
             std::vector<std::uint32_t> positions) {
            std::vector<InputRule> made;
            for (const auto& [op, numbers] : rules) made.push_back({op, numbers});
            new (self) InputField{size, std::move(made), std::move(positions)};
          },
          nb::arg("size"), nb::arg("rules"), nb::arg("positions") = std::vector<std::uint32_t>{});

  nb::class_<NamedInput>(m, "NamedInput", "What callers send under a name.")
      .def(
          "__init__",
          [](NamedInput* self, std::string name, InputKind kind, std::vector<std::int64_t> shape, bool ragged,
             std::shared_ptr<Vocabulary> vocabulary, std::vector<InputField> fields) {
            new (self) NamedInput{std::move(name),  kind, std::move(shape), ragged, std::move(vocabulary),
                                  std::move(fields)};
          },
          nb::arg("name"), nb::arg("kind"), nb::arg("shape"), nb::arg("ragged"), nb::arg("vocabulary").none(),
          nb::arg("fields"));

  nb::class_<InputLayout>(m, "InputLayout", "The named inputs of a model, and the records that they become.")
      .def(nb::init<std::vector<NamedInput>>(), nb::arg("inputs"))
      .def_prop_ro("words", &InputLayout::words)
      .def(
          "refused",
          [](const InputLayout& self) {
            std::vector<std::pair<std::string, std::uint64_t>> counts;
            for (std::size_t i = 0; i < self.inputs().size(); ++i) {
              counts.emplace_back(self.inputs()[i].name, self.refused(i));
            }
            return counts;
          },
          "By input, the requests that were refused for an id or a word of it.");
}

}  // namespace fused_mlp
