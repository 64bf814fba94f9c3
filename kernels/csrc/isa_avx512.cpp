// The avx512 table. Only this file is built with the flags of that instruction set (see CMakeLists.txt).
#include "isa.hpp"
#include "layer.hpp"
#include "probe_loops.hpp"
#include "softmax.hpp"
#include "tile_activation.hpp"
#include "vec_avx512.hpp"

namespace fused_mlp {

extern const Isa kAvx512Isa = {
    "avx512",
    Layer<Avx512>::kPanel,
    Avx512::kMaxRows,
    Layer<Avx512>::run,
    TileActivation<Avx512>::run,
    Softmax<Avx512>::run,
    Layer<Avx512>::run_timed,
    ProbeLoops<Avx512>::multiply_add,
    ProbeLoops<Avx512>::read,
};

}  // namespace fused_mlp
