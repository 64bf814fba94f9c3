#include "engine/background.hpp"

#include <dlfcn.h>
#include <link.h>
#include <sched.h>
#include <sys/resource.h>

#include <string>
#include <string_view>
#include <vector>

#include "engine/busy_threads.hpp"

namespace fused_mlp {

namespace {

using SetThreads = void (*)(int);

int note_runtime(dl_phdr_info* library, std::size_t, void* found) {
  const std::string_view path = library->dlpi_name;
  const std::string_view file = path.substr(path.rfind('/') + 1);
  if (file.starts_with("libgomp") || file.starts_with("libomp") || file.starts_with("libiomp")) {
    static_cast<std::vector<std::string>*>(found)->emplace_back(path);
  }
  return 0;
}

// Of the OpenMP runtimes that others have loaded (torch brings its own), what sets the size of a thread's
// teams.
std::vector<SetThreads> find_runtimes() {
  std::vector<std::string> paths;
  dl_iterate_phdr(note_runtime, &paths);
  std::vector<SetThreads> found;
  for (const std::string& path : paths) {  // not inside of the iteration, which holds the loader's lock
    void* const runtime = dlopen(path.c_str(), RTLD_LAZY | RTLD_NOLOAD);
    if (runtime == nullptr) continue;
    if (auto set = reinterpret_cast<SetThreads>(dlsym(runtime, "omp_set_num_threads"))) found.push_back(set);
  }
  return found;
}

}  // namespace

void give_way() noexcept {
  this_thread_low_priority = true;
  const sched_param none{};
  [[maybe_unused]] const int batch = sched_setscheduler(0, SCHED_BATCH, &none);
  [[maybe_unused]] const int nice = setpriority(PRIO_PROCESS, 0, 19);  // of this thread alone, on Linux
}

void stay_on_one_thread() noexcept {
  static const std::vector<SetThreads> runtimes = find_runtimes();
  for (const SetThreads set : runtimes) set(1);
}

}  // namespace fused_mlp
