// SPDX-License-Identifier: Apache-2.0
#include "engine/tensor.hpp"

#include "bindings/register.hpp"

namespace nb = nanobind;

namespace fused_mlp {

void register_tensor(nb::module_& m) {
  nb::enum_<DType>(m, "DType", "Element types on the wire.")
      .value("fp32", DType::fp32)
      .value("fp16", DType::fp16)
      .value("bf16", DType::bf16)
      .value("fp64", DType::fp64);
}

}  // namespace fused_mlp
