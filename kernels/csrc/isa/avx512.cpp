// SPDX-License-Identifier: Apache-2.0
#include "isa/dot_avx512.hpp"
#include "isa/table.hpp"
#include "isa/vec_avx512.hpp"

namespace fused_mlp {

extern constinit const Isa kAvx512Isa = isa_table<Avx512, Avx512Madd>("avx512");
extern constinit const Isa kAvx512VnniIsa = isa_table<Avx512, Avx512Vnni>("avx512_vnni");

}  // namespace fused_mlp
