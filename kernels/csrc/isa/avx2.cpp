#include "isa/table.hpp"
#include "isa/vec_avx2.hpp"

namespace fused_mlp {

extern constinit const Isa kAvx2Isa = isa_table<Avx2>("avx2");

}  // namespace fused_mlp
