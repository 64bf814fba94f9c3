// SPDX-License-Identifier: Apache-2.0
#include "engine/run/background.hpp"

#include <dlfcn.h>
#include <link.h>
#include <malloc.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/run/busy_threads.hpp"
#include "threads/turns.hpp"

namespace fused_mlp {

namespace {

using SetThreads = void (*)(int);

int collect_openmp(dl_phdr_info* library, std::size_t, void* found) {
  const std::string_view path = library->dlpi_name;
  const std::string_view file = path.substr(path.rfind('/') + 1);
  if (file.starts_with("libgomp") || file.starts_with("libomp") || file.starts_with("libiomp")) {
    static_cast<std::vector<std::string>*>(found)->emplace_back(path);
  }
  return 0;
}

// omp_set_num_threads of every OpenMP runtime in the process (torch brings its own).
std::vector<SetThreads> find_runtimes() {
  std::vector<std::string> paths;
  dl_iterate_phdr(collect_openmp, &paths);
  std::vector<SetThreads> found;
  for (const std::string& path : paths) {  // after the iteration, which holds the loader's lock
    void* const runtime = dlopen(path.c_str(), RTLD_LAZY | RTLD_NOLOAD);
    if (runtime == nullptr) continue;
    if (auto set = reinterpret_cast<SetThreads>(dlsym(runtime, "omp_set_num_threads"))) found.push_back(set);
  }
  return found;
}

void choose_turns(int policy, int nicer, std::uint64_t turn_ns) noexcept {
  if (sched_getscheduler(0) != SCHED_OTHER) return;  // an operator has chosen another one for the process
  Turns turns;
  turns.policy = static_cast<std::uint32_t>(policy);
  turns.nice = std::min(getpriority(PRIO_PROCESS, 0) + nicer, kLowestPriority);
  turns.runtime_ns = turn_ns;
  set_turns(turns);
}

}  // namespace

void lower_thread_priority() noexcept {
  this_thread_low_priority = true;
  const sched_param none{};
  [[maybe_unused]] const int batch = sched_setscheduler(0, SCHED_BATCH, &none);
  [[maybe_unused]] const int nice =
      setpriority(PRIO_PROCESS, 0, kLowestPriority);  // on Linux: of this thread only
}

void take_short_turns() noexcept {
  this_thread_is_loop = true;
  choose_turns(SCHED_OTHER, 0, 100'000);
}

void step_back() noexcept { choose_turns(SCHED_BATCH, kWorkersNicer, 500'000); }

void release_free_memory() noexcept {
#ifdef __GLIBC__
  malloc_trim(0);
#endif
}

void keep_little_free_memory() noexcept {
#ifdef __GLIBC__
  mallopt(M_TRIM_THRESHOLD, 4 << 20);
  // Unless it is set, the threshold above makes each larger block than 128 KiB a mapping of its own.
  mallopt(M_MMAP_THRESHOLD, 32 << 20);
#endif
}

std::size_t allocated_bytes() noexcept {
#ifdef __GLIBC_PREREQ
#if __GLIBC_PREREQ(2, 33)
  return mallinfo2().uordblks;
#endif
#endif
  return 0;
}

void limit_openmp_to_one_thread() noexcept {
  static const std::vector<SetThreads> runtimes = find_runtimes();
  for (const SetThreads set : runtimes) set(1);
}

}  // namespace fused_mlp
