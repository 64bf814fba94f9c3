// Detects the instruction sets of this machine and selects one for a kernel.
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <string_view>

#include "isa/isa.hpp"

namespace fused_mlp {

namespace {

struct Usable {
  const Isa* list[3];
  std::size_t count = 0;

  Usable() {
#if defined(__x86_64__)
    // __builtin_cpu_supports also checks that the operating system saves the registers.
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f")) list[count++] = &kAvx512Isa;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) list[count++] = &kAvx2Isa;
#endif
    list[count++] = &kPortableIsa;
  }
};

const Usable& usable() {
  static const Usable found;
  return found;
}

}  // namespace

const Isa* const* usable_isas(std::size_t* count) {
  *count = usable().count;
  return usable().list;
}

const Isa& choose_isa(const char* name) {
  const Usable& found = usable();
  if (name == nullptr) name = std::getenv("FUSED_MLP_ISA");
  if (name == nullptr || *name == '\0') return *found.list[0];
  std::string names;
  for (std::size_t i = 0; i < found.count; ++i) {
    if (std::string_view(found.list[i]->name) == name) return *found.list[i];
    names += (names.empty() ? "" : ", ") + std::string(found.list[i]->name);
  }
  throw std::invalid_argument("instruction set (FUSED_MLP_ISA): expected one of " + names + ", got '" + name +
                              "', which is unknown or cannot run on this machine");
}

}  // namespace fused_mlp
