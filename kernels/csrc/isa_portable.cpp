// The portable table, built without flags for an instruction set.
#include "isa.hpp"
#include "layer.hpp"
#include "probe_loops.hpp"
#include "softmax.hpp"
#include "tile_activation.hpp"
#include "vec_portable.hpp"

namespace fused_mlp {

extern const Isa kPortableIsa = {
    "portable",
    Layer<Portable>::kPanel,
    Portable::kMaxRows,
    Layer<Portable>::run,
    TileActivation<Portable>::run,
    Softmax<Portable>::run,
    Layer<Portable>::run_timed,
    ProbeLoops<Portable>::multiply_add,
    ProbeLoops<Portable>::read,
};

}  // namespace fused_mlp
