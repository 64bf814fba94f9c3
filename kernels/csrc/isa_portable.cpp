// The portable table. Only this file is built with the flags of that instruction set (see CMakeLists.txt).
#include "isa.hpp"
#include "layer.hpp"
#include "softmax.hpp"
#include "vec_portable.hpp"

namespace fused_mlp {

extern const Isa kPortableIsa = {
    "portable",           Layer<Portable>::kPanel,   Portable::kMaxRows,
    Layer<Portable>::run, Layer<Portable>::activate, Softmax<Portable>::run,
};

}  // namespace fused_mlp
