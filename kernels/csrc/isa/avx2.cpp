// SPDX-License-Identifier: Apache-2.0
#include "isa/dot_avx2.hpp"
#include "isa/table.hpp"
#include "isa/vec_avx2.hpp"

namespace fused_mlp {

extern constinit const Isa kAvx2Isa = isa_table<Avx2, Avx2Madd>("avx2");
extern constinit const Isa kAvxVnniIsa = isa_table<Avx2, AvxVnni>("avx_vnni");

}  // namespace fused_mlp
