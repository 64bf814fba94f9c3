// SPDX-License-Identifier: Apache-2.0
// State of which a process has one copy. Not inline in the headers: the Python modules _engine and _front are
// libraries of their own, and each would get its own copy.
#include <thread>

#include "engine/run/busy_threads.hpp"
#include "engine/telemetry/histogram.hpp"
#include "engine/telemetry/per_thread.hpp"
#include "engine/telemetry/request_spans.hpp"
#include "engine/telemetry/trace.hpp"

namespace fused_mlp {

std::atomic<unsigned> busy_threads{0};
std::atomic<unsigned> usable_cores{std::thread::hardware_concurrency()};
constinit thread_local bool this_thread_busy = false;
constinit thread_local bool this_thread_low_priority = false;
constinit thread_local bool this_thread_is_loop = false;
std::atomic<bool> metrics_on{true};
std::atomic<unsigned> counting_threads{0};
constinit thread_local unsigned this_thread_counts_as = 0;
std::atomic<bool> detail::tracing{false};
std::atomic<bool> detail::sampling{false};

}  // namespace fused_mlp
