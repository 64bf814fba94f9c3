#include "isa/dot_portable.hpp"
#include "isa/table.hpp"
#include "isa/vec_portable.hpp"

namespace fused_mlp {

extern constinit const Isa kPortableIsa = isa_table<Portable, PortableDot>("portable");

}  // namespace fused_mlp
