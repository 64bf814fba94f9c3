// SPDX-License-Identifier: Apache-2.0
// Detects the instruction sets of this machine and selects one for a kernel.
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <string_view>
#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

#include "isa/isa.hpp"

namespace fused_mlp {

namespace {

#if defined(__x86_64__)
// Older compilers do not know it by name.
bool has_avx_vnni() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) != 0 && (eax & (1u << 4)) != 0;
}
#elif defined(__aarch64__)
bool has_dot_product() {
#if defined(__ARM_FEATURE_DOTPROD)
  return true;  // the compiler was told so
#elif defined(__linux__)
  constexpr unsigned long kDotProduct = 1ul << 20;  // HWCAP_ASIMDDP
  return (getauxval(AT_HWCAP) & kDotProduct) != 0;
#else
  return false;
#endif
}
#endif

struct Usable {
  IsaList all;
  IsaList plain;         // by index of `all`: the instruction set without its extension for int8
  IsaList without_int8;  // those without extensions

  Usable() {
#if defined(__x86_64__)
    // __builtin_cpu_supports also checks that the operating system saves the registers.
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw")) {
      if (__builtin_cpu_supports("avx512vnni")) add(kAvx512VnniIsa, kAvx512Isa);
      add(kAvx512Isa, kAvx512Isa);
    }
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
      if (has_avx_vnni()) add(kAvxVnniIsa, kAvx2Isa);
      add(kAvx2Isa, kAvx2Isa);
    }
#elif defined(__aarch64__)
    if (has_dot_product()) add(kNeonDotIsa, kPortableIsa);
#endif
    add(kPortableIsa, kPortableIsa);
  }

  void add(const Isa& isa, const Isa& without) {
    all.list[all.count++] = &isa;
    plain.list[plain.count++] = &without;
    if (&isa == &without) without_int8.list[without_int8.count++] = &isa;
  }
};

const Usable& usable() {
  static const Usable found;
  return found;
}

}  // namespace

const IsaList& usable_isas(bool int8) { return int8 ? usable().all : usable().without_int8; }

const Isa& choose_isa(const char* name, bool int8) {
  const Usable& found = usable();
  if (name == nullptr) name = std::getenv("FUSED_MLP_ISA");
  if (name == nullptr || *name == '\0') return *usable_isas(int8).list[0];
  std::string names;
  for (std::size_t i = 0; i < found.all.count; ++i) {
    const Isa* const isa = found.all.list[i];
    if (std::string_view(isa->name) == name) return int8 ? *isa : *found.plain.list[i];
    names += (names.empty() ? "" : ", ") + std::string(isa->name);
  }
  throw std::invalid_argument("instruction set (FUSED_MLP_ISA): expected one of " + names + ", got '" + name +
                              "', which is unknown or cannot run on this machine");
}

}  // namespace fused_mlp
