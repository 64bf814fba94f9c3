#include "isa/table.hpp"
#include "isa/vec_portable.hpp"

namespace fused_mlp {

extern constinit const Isa kPortableIsa = isa_table<Portable>("portable");

}  // namespace fused_mlp
