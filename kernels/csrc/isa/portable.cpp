// SPDX-License-Identifier: Apache-2.0
#include "isa/dot_portable.hpp"
#include "isa/table.hpp"
#include "isa/vec_portable.hpp"
#if defined(__aarch64__)
#include "isa/dot_neon.hpp"
#endif

namespace fused_mlp {

extern constinit const Isa kPortableIsa = isa_table<Portable, PortableDot>("portable");
#if defined(__aarch64__)
extern constinit const Isa kNeonDotIsa = isa_table<Portable, NeonDot>("neon_dotprod");
#endif

}  // namespace fused_mlp
