#include "isa/table.hpp"
#include "isa/vec_avx512.hpp"

namespace fused_mlp {

extern constinit const Isa kAvx512Isa = isa_table<Avx512>("avx512");

}  // namespace fused_mlp
