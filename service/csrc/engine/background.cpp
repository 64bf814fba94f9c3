#include "engine/background.hpp"

#include <dlfcn.h>
#include <link.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/busy_threads.hpp"

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

// The first version of the kernel's struct sched_attr, which the C library does not have.
struct TurnAttributes {
  std::uint32_t size = sizeof(TurnAttributes);
  std::uint32_t policy = 0;
  std::uint64_t flags = 0;
  std::int32_t nice = 0;
  std::uint32_t priority = 0;
  std::uint64_t runtime_ns = 0;  // of SCHED_OTHER and SCHED_BATCH: how long a turn is
  std::uint64_t deadline_ns = 0;
  std::uint64_t period_ns = 0;
};

void set_turns(int policy, int nicer, std::uint64_t turn_ns) noexcept {
  if (sched_getscheduler(0) != SCHED_OTHER) return;  // an operator has chosen another one for the process
  TurnAttributes attributes;
  attributes.policy = static_cast<std::uint32_t>(policy);
  attributes.nice = std::min(getpriority(PRIO_PROCESS, 0) + nicer, 19);
  attributes.runtime_ns = turn_ns;
  [[maybe_unused]] const long done = syscall(SYS_sched_setattr, 0, &attributes, 0);
}

}  // namespace

void lower_thread_priority() noexcept {
  this_thread_low_priority = true;
  const sched_param none{};
  [[maybe_unused]] const int batch = sched_setscheduler(0, SCHED_BATCH, &none);
  [[maybe_unused]] const int nice = setpriority(PRIO_PROCESS, 0, 19);  // on Linux: of this thread only
}

void take_short_turns() noexcept { set_turns(SCHED_OTHER, 0, 100'000); }

void step_back() noexcept { set_turns(SCHED_BATCH, 5, 500'000); }

void limit_openmp_to_one_thread() noexcept {
  static const std::vector<SetThreads> runtimes = find_runtimes();
  for (const SetThreads set : runtimes) set(1);
}

}  // namespace fused_mlp
