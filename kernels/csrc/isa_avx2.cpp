// The avx2 table. Only this file is built with the flags of that instruction set (see CMakeLists.txt).
#include "isa.hpp"
#include "layer.hpp"
#include "probe_loops.hpp"
#include "softmax.hpp"
#include "tile_activation.hpp"
#include "vec_avx2.hpp"

namespace fused_mlp {

extern const Isa kAvx2Isa = {
    "avx2",
    Layer<Avx2>::kPanel,
    Avx2::kMaxRows,
    Layer<Avx2>::run,
    TileActivation<Avx2>::run,
    Softmax<Avx2>::run,
    Layer<Avx2>::run_timed,
    ProbeLoops<Avx2>::multiply_add,
    ProbeLoops<Avx2>::read,
};

}  // namespace fused_mlp
