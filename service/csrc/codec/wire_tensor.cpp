// SPDX-License-Identifier: Apache-2.0
#include "codec/wire_tensor.hpp"

#include <array>

namespace fused_mlp {
namespace {

struct ElementRow {
  std::string_view name;
  size_t size;
};
constexpr std::array<ElementRow, 15> kElements = {{{"FP32", 4},
                                                   {"FP16", 2},
                                                   {"BF16", 2},
                                                   {"FP64", 8},
                                                   {"INT8", 1},
                                                   {"INT16", 2},
                                                   {"INT32", 4},
                                                   {"INT64", 8},
                                                   {"UINT8", 1},
                                                   {"UINT16", 2},
                                                   {"UINT32", 4},
                                                   {"UINT64", 8},
                                                   {"BOOL", 1},
                                                   {"BYTES", 0},
                                                   {"unknown", 0}}};

}  // namespace

size_t element_size(Element element) noexcept { return kElements[static_cast<size_t>(element)].size; }
std::string_view element_name(Element element) noexcept {
  return kElements[static_cast<size_t>(element)].name;
}

Element element_from_name(std::string_view name) noexcept {
  size_t i = 0;
  while (i < static_cast<size_t>(Element::unknown) && kElements[i].name != name) ++i;
  return static_cast<Element>(i);
}

Element element_from_proto(int64_t number) noexcept {
  constexpr Element kNumbers[] = {Element::fp32,  Element::fp32,    Element::fp16,
                                  Element::bf16,  Element::fp64,    Element::int32,
                                  Element::int64, Element::boolean, Element::bytes};
  const bool known = number >= 0 && number < static_cast<int64_t>(std::size(kNumbers));
  return known ? kNumbers[number] : Element::unknown;
}

}  // namespace fused_mlp
