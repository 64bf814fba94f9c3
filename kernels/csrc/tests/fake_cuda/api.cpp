// libcuda.so.1 for tests: the functions of it that the launcher calls. They check more than NVIDIA's do:
// every handle and address must be alive and belong to the current context, copies need page-locked memory
// and stay inside of allocations, nothing may wait or allocate in a capture, and waiting for the whole device
// breaks the captures of all threads. What only a real GPU has is not here: its machine code, its timing.
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>

#include "../../cuda/driver.hpp"
#include "objects.hpp"

namespace fake_cuda {

using fused_mlp::cuda::CopyParameters;
using fused_mlp::cuda::EdgeData;
using fused_mlp::cuda::KernelNodeParameters;
using fused_mlp::cuda::kProgrammaticEdge;
using fused_mlp::cuda::kProgrammaticPort;

namespace {

enum Result {
  kSuccess = 0,
  kInvalidValue = 1,
  kOutOfMemory = 2,
  kNotInitialized = 3,
  kInvalidDevice = 101,
  kInvalidImage = 200,
  kInvalidContext = 201,
  kNoBinaryForGpu = 209,
  kInvalidHandle = 400,
  kNotFound = 500,
  kNotReady = 600,
  kIllegalAddress = 700,
  kLaunchOutOfResources = 701,
  kLaunchFailed = 719,
  kCaptureUnsupported = 900,
  kCaptureInvalidated = 901,
};

const std::map<int, std::pair<const char*, const char*>> kTexts = {
    {kSuccess, {"CUDA_SUCCESS", "no error"}},
    {kInvalidValue, {"CUDA_ERROR_INVALID_VALUE", "invalid argument"}},
    {kOutOfMemory, {"CUDA_ERROR_OUT_OF_MEMORY", "out of memory"}},
    {kNotInitialized, {"CUDA_ERROR_NOT_INITIALIZED", "initialization error"}},
    {kInvalidDevice, {"CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"}},
    {kInvalidImage, {"CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"}},
    {kInvalidContext, {"CUDA_ERROR_INVALID_CONTEXT", "invalid device context"}},
    {kNoBinaryForGpu,
     {"CUDA_ERROR_NO_BINARY_FOR_GPU", "no kernel image is available for execution on the device"}},
    {kInvalidHandle, {"CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"}},
    {kNotFound, {"CUDA_ERROR_NOT_FOUND", "named symbol not found"}},
    {kNotReady, {"CUDA_ERROR_NOT_READY", "device not ready"}},
    {kIllegalAddress, {"CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"}},
    {kLaunchOutOfResources,
     {"CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "too many resources requested for launch"}},
    {kLaunchFailed, {"CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"}},
    {kCaptureUnsupported,
     {"CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "operation not permitted when stream is capturing"}},
    {kCaptureInvalidated,
     {"CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", "operation failed due to a previous error during capture"}},
};

unsigned long number(const char* name, unsigned long otherwise) {
  const char* const text = std::getenv(name);
  return text != nullptr ? std::strtoul(text, nullptr, 10) : otherwise;
}

// Handles that are alive. Any other pointer is refused.
template <class T>
class Table {
 public:
  T* add(std::unique_ptr<T> made) {
    const std::lock_guard lock(mutex_);
    T* const handle = made.get();
    all_[handle] = std::move(made);
    return handle;
  }
  bool has(const void* handle) {
    const std::lock_guard lock(mutex_);
    return all_.contains(static_cast<const T*>(handle));
  }
  // Destroyed by the caller, outside of the lock.
  std::unique_ptr<T> take(const void* handle) {
    const std::lock_guard lock(mutex_);
    const auto found = all_.find(static_cast<const T*>(handle));
    if (found == all_.end()) return nullptr;
    std::unique_ptr<T> taken = std::move(found->second);
    all_.erase(found);
    return taken;
  }
  std::size_t count() {
    const std::lock_guard lock(mutex_);
    return all_.size();
  }
  // None of them is destroyed meanwhile.
  template <class Visit>
  void visit(Visit visit) {
    const std::lock_guard lock(mutex_);
    for (const auto& each : all_) visit(*each.second);
  }

 private:
  std::mutex mutex_;
  std::map<const T*, std::unique_ptr<T>> all_;
};

struct Failure {
  int code, skip, times;
};

constexpr int kDevices = 2;

// The whole fake driver. Never destroyed: its users may outlive any static.
struct Fake {
  std::atomic<bool> initialized{false};
  Memory memory{number("FAKE_CUDA_MEMORY_MIB", 256) << 20};
  Executor executor{memory};
  Pace pace;
  std::array<Context, kDevices> contexts;
  std::mutex mutex;  // of what follows
  std::map<std::string, Failure> failures;
  std::map<std::string, unsigned> calls;
  std::map<Stream*, std::thread::id> captures;  // and which thread has begun them
  Table<Module> modules;
  Table<Function> functions;
  Table<Stream> streams;
  Table<Event> events;
  Table<Graph> graphs;
  Table<GraphExec> executables;
  std::atomic<std::uint64_t> numbers{1};
  const char* const fail_file = std::getenv("FAKE_CUDA_FAIL_FILE");
  const bool counting = std::getenv("FAKE_CUDA_STREAMS") == nullptr;  // not while calls are timed

  Fake() {
    for (int i = 0; i < kDevices; ++i) contexts[static_cast<std::size_t>(i)].device = i;
    pace.delay_us = static_cast<unsigned>(number("FAKE_CUDA_DELAY_US", 20));
    const char* const streams_mode = std::getenv("FAKE_CUDA_STREAMS");
    pace.inline_ = streams_mode != nullptr && std::strcmp(streams_mode, "inline") == 0;
  }

  // The code that a call should fail with, or 0.
  int failure_of(const char* symbol) {
    if (fail_file != nullptr) {
      std::ifstream file(fail_file);
      std::string name;
      int code = 0;
      if (file >> name >> code && name == symbol) return code;
    }
    if (!counting) return 0;
    const std::lock_guard lock(mutex);
    ++calls[symbol];
    const auto found = failures.find(symbol);
    if (found == failures.end()) return 0;
    Failure& failure = found->second;
    if (failure.skip > 0) return --failure.skip, 0;
    if (failure.times <= 0) return 0;
    --failure.times;
    return failure.code;
  }
};

Fake& fake() {
  static Fake* const made = new Fake;
  return *made;
}

// Aligned: LeakSanitizer takes a thread's block of these for something else where it lies 16 bytes into a
// page.
alignas(64) thread_local std::vector<Context*> current;

Context* current_context() { return current.empty() ? nullptr : current.back(); }

enum class Needs { kNothing, kContext, kHealthyContext };

// What every call begins with: an injected failure, no current context, a sticky error.
int enter(const char* symbol, Needs needs = Needs::kHealthyContext) {
  if (!fake().initialized) return kNotInitialized;
  if (const int code = fake().failure_of(symbol)) return code;
  if (needs == Needs::kNothing) return kSuccess;
  if (current_context() == nullptr || current_context()->references == 0) return kInvalidContext;
  return needs == Needs::kContext ? kSuccess : current_context()->sticky.load();
}

template <class Which>
int break_captures(Which which) {
  const std::lock_guard lock(fake().mutex);
  int code = kSuccess;
  for (const auto& [stream, by] : fake().captures) {
    if (!which(*stream, by)) continue;
    stream->invalidate();
    code = kCaptureUnsupported;
  }
  return code;
}

// The same for calls that a capture of this thread does not survive.
int enter_unsafe(const char* symbol, Needs needs = Needs::kHealthyContext) {
  if (const int code = enter(symbol, needs)) return code;
  return break_captures([](const Stream&, std::thread::id by) { return by == std::this_thread::get_id(); });
}

int check_stream(Stream* stream) {
  if (!fake().streams.has(stream)) return kInvalidHandle;
  return &stream->context() == current_context() ? kSuccess : kInvalidContext;
}

template <class T>
int check_handle(Table<T>& table, T* handle) {
  if (!table.has(handle)) return kInvalidHandle;
  return handle->context == current_context() ? kSuccess : kInvalidContext;
}

// The current context's own, which the launcher's streams do not wait for: they are all non-blocking.
Stream* null_stream() {
  const std::lock_guard lock(fake().mutex);
  Context& context = *current_context();
  if (!context.null_stream) context.null_stream = std::make_unique<Stream>(context, fake().pace, 0);
  return context.null_stream.get();
}

// Work that copies between page-locked memory and the device; empty if it cannot. Checked again as it runs:
// either may have been freed.
Work copy(std::uint64_t device, const void* host, std::size_t bytes, bool in) {
  Memory& memory = fake().memory;
  const std::size_t on_device = memory.offset_of_device(device), on_host = memory.offset_of_host(host);
  const auto usable = [=, &memory] {
    return memory.holds(on_device, bytes) && memory.holds(on_host, bytes, /*host_only=*/true);
  };
  if (!usable()) return {};
  return [=, &memory] {
    if (!usable()) return static_cast<int>(kIllegalAddress);
    std::uint8_t* const a = memory.host_address(in ? on_device : on_host);
    std::memcpy(a, memory.host_address(in ? on_host : on_device), bytes);
    return static_cast<int>(kSuccess);
  };
}

int enqueue(Stream* stream, Work work) {
  if (!work) return kInvalidValue;
  stream->enqueue(std::move(work));
  return kSuccess;
}

// Work that runs a kernel.
int prepare(Function* function, const KernelNodeParameters& given, Work& work) {
  if (!fake().functions.has(function)) return kInvalidHandle;
  if (function->module->context != current_context()) return kInvalidContext;
  const std::uint64_t threads = std::uint64_t{given.block_x} * given.block_y * given.block_z;
  if (given.grid_x == 0 || given.grid_y == 0 || given.grid_z == 0 || threads == 0 || threads > 1024 ||
      given.extra != nullptr || given.shared_bytes > function->most_shared_bytes) {
    return kInvalidValue;
  }
  Launch launch{function->module->number,
                function->entry,
                {given.grid_x, given.grid_y, given.grid_z},
                {given.block_x, given.block_y, given.block_z},
                given.shared_bytes,
                {}};
  for (std::size_t i = 0; i < function->entry.parameters.size(); ++i) {
    std::uint64_t value = 0;
    std::memcpy(&value, given.parameters[i], function->entry.parameters[i]);
    launch.parameters.push_back(value);
  }
  work = [launch = std::move(launch)] {
    if (const int code = fake().failure_of("kernel")) return code;
    return fake().executor.run(launch);
  };
  return kSuccess;
}

// Only chains: a node that does not depend on the one before it might run beside it.
int add_node(Graph* graph, Work** node, Work* const* dependencies, std::size_t count, Work work) {
  const bool chained = count == 1 && !graph->nodes.empty() && dependencies[0] == graph->nodes.back().get();
  if ((!chained && count != 0) || !work || graph->loose) return kInvalidValue;
  graph->loose = !chained && !graph->nodes.empty();
  graph->nodes.push_back(std::make_unique<Work>(std::move(work)));
  *node = graph->nodes.back().get();
  return kSuccess;
}

#define ENTER(...) \
  if (const int code_ = (__VA_ARGS__); code_ != kSuccess) return code_

}  // namespace

}  // namespace fake_cuda

using namespace fake_cuda;

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT int cuInit(unsigned flags) {
  if (const int code = fake().failure_of("cuInit")) return code;
  fake().initialized = true;
  return flags == 0 ? kSuccess : kInvalidValue;
}

EXPORT int cuGetErrorName(int code, const char** text) {
  const auto found = kTexts.find(code);
  *text = found == kTexts.end() ? nullptr : found->second.first;
  return *text != nullptr ? kSuccess : kInvalidValue;
}

EXPORT int cuGetErrorString(int code, const char** text) {
  const auto found = kTexts.find(code);
  *text = found == kTexts.end() ? nullptr : found->second.second;
  return *text != nullptr ? kSuccess : kInvalidValue;
}

EXPORT int cuDeviceGetCount(int* count) {
  ENTER(enter("cuDeviceGetCount", Needs::kNothing));
  return *count = kDevices, kSuccess;
}

EXPORT int cuDeviceGet(int* device, int ordinal) {
  ENTER(enter("cuDeviceGet", Needs::kNothing));
  if (ordinal < 0 || ordinal >= kDevices) return kInvalidDevice;
  return *device = ordinal, kSuccess;
}

EXPORT int cuDeviceGetName(char* name, int length, int device) {
  ENTER(enter("cuDeviceGetName", Needs::kNothing));
  std::snprintf(name, static_cast<std::size_t>(length), "fake GPU %d", device);
  return kSuccess;
}

EXPORT int cuDeviceGetAttribute(int* value, int attribute, int device) {
  ENTER(enter("cuDeviceGetAttribute", Needs::kNothing));
  const int capability = static_cast<int>(number("FAKE_CUDA_CAPABILITY", 80));
  if (device < 0 || device >= kDevices || (attribute != 75 && attribute != 76)) return kInvalidValue;
  *value = attribute == 75 ? capability / 10 : capability % 10;
  return kSuccess;
}

EXPORT int cuDevicePrimaryCtxRetain(Context** context, int device) {
  ENTER(enter("cuDevicePrimaryCtxRetain", Needs::kNothing));
  if (device < 0 || device >= kDevices) return kInvalidDevice;
  const std::lock_guard lock(fake().mutex);
  *context = &fake().contexts[static_cast<std::size_t>(device)];
  ++(*context)->references;
  return kSuccess;
}

EXPORT int cuDevicePrimaryCtxRelease_v2(int device) {
  ENTER(enter("cuDevicePrimaryCtxRelease_v2", Needs::kNothing));
  std::unique_ptr<Stream> ended;  // outside of the lock: it waits for its work
  const std::lock_guard lock(fake().mutex);
  Context& context = fake().contexts[static_cast<std::size_t>(device)];
  if (context.references == 0) return kInvalidContext;
  if (--context.references > 0) return kSuccess;
  context.sticky = 0;
  ended = std::move(context.null_stream);
  return kSuccess;
}

EXPORT int cuCtxPushCurrent_v2(Context* context) {
  ENTER(enter("cuCtxPushCurrent_v2", Needs::kNothing));
  if (context == nullptr) return kInvalidContext;
  current.push_back(context);
  return kSuccess;
}

EXPORT int cuCtxPopCurrent_v2(Context** context) {
  if (current.empty()) return kInvalidContext;
  *context = current.back();
  current.pop_back();
  return kSuccess;
}

EXPORT int cuModuleLoadData(Module** module, const void* image) {
  ENTER(enter_unsafe("cuModuleLoadData"));
  if (std::memcmp(image, "\177ELF", 4) == 0) return kNoBinaryForGpu;
  const std::string ptx = static_cast<const char*>(image);
  auto made = std::make_unique<Module>();
  made->context = current_context();
  made->number = fake().numbers++;
  made->entries = entries_of(ptx);
  if (ptx.find(".version") == std::string::npos || made->entries.empty()) return kInvalidImage;
  ENTER(fake().executor.load(made->number, ptx));
  *module = fake().modules.add(std::move(made));
  return kSuccess;
}

EXPORT int cuModuleUnload(Module* module) {
  ENTER(enter_unsafe("cuModuleUnload", Needs::kContext));
  ENTER(check_handle(fake().modules, module));
  const std::unique_ptr<Module> taken = fake().modules.take(module);
  for (const Function* const function : taken->functions) fake().functions.take(function);
  return kSuccess;
}

EXPORT int cuModuleGetFunction(Function** function, Module* module, const char* name) {
  ENTER(enter("cuModuleGetFunction"));
  ENTER(check_handle(fake().modules, module));
  for (const Entry& entry : module->entries) {
    if (entry.name != name || !fake().executor.knows(name)) continue;
    *function = fake().functions.add(std::make_unique<Function>(Function{module, entry}));
    module->functions.push_back(*function);
    return kSuccess;
  }
  return kNotFound;
}

EXPORT int cuFuncSetAttribute(Function* function, int attribute, int value) {
  ENTER(enter("cuFuncSetAttribute"));
  if (!fake().functions.has(function)) return kInvalidHandle;
  if (attribute != 8 || value < 0 || value > 227 * 1024) return kInvalidValue;
  function->most_shared_bytes = static_cast<unsigned>(value);
  return kSuccess;
}

EXPORT int cuMemAlloc_v2(std::uint64_t* address, std::size_t bytes) {
  ENTER(enter_unsafe("cuMemAlloc_v2"));
  if (bytes == 0) return kInvalidValue;
  const std::size_t offset = fake().memory.allocate(bytes, false);
  if (offset == SIZE_MAX) return kOutOfMemory;
  *address = fake().memory.device_address(offset);
  return kSuccess;
}

EXPORT int cuMemFree_v2(std::uint64_t address) {
  ENTER(enter_unsafe("cuMemFree_v2", Needs::kContext));
  return fake().memory.free(fake().memory.offset_of_device(address), false) ? kSuccess : kInvalidValue;
}

EXPORT int cuMemHostAlloc(void** memory, std::size_t bytes, unsigned flags) {
  ENTER(enter_unsafe("cuMemHostAlloc"));
  if (bytes == 0 || (flags & 2u) == 0) return kInvalidValue;  // all of ours are mapped
  const std::size_t offset = fake().memory.allocate(bytes, true);
  if (offset == SIZE_MAX) return kOutOfMemory;
  *memory = fake().memory.host_address(offset);
  return kSuccess;
}

EXPORT int cuMemFreeHost(void* memory) {
  ENTER(enter_unsafe("cuMemFreeHost", Needs::kContext));
  return fake().memory.free(fake().memory.offset_of_host(memory), true) ? kSuccess : kInvalidValue;
}

EXPORT int cuMemHostGetDevicePointer_v2(std::uint64_t* address, void* memory, unsigned flags) {
  ENTER(enter("cuMemHostGetDevicePointer_v2"));
  const std::size_t offset = fake().memory.offset_of_host(memory);
  if (flags != 0 || !fake().memory.holds(offset, 1, true)) return kInvalidValue;
  *address = fake().memory.device_address(offset);
  return kSuccess;
}

// Pageable memory is read at once, but the device may have the bytes later: in the order of the null stream.
EXPORT int cuMemcpyHtoD_v2(std::uint64_t to, const void* from, std::size_t bytes) {
  ENTER(enter_unsafe("cuMemcpyHtoD_v2"));
  const std::size_t offset = fake().memory.offset_of_device(to);
  if (!fake().memory.holds(offset, bytes)) return kInvalidValue;
  const auto* const first = static_cast<const std::uint8_t*>(from);
  null_stream()->enqueue([offset, staged = std::vector<std::uint8_t>(first, first + bytes)] {
    if (!fake().memory.holds(offset, staged.size())) return static_cast<int>(kIllegalAddress);
    std::memcpy(fake().memory.host_address(offset), staged.data(), staged.size());
    return static_cast<int>(kSuccess);
  });
  return kSuccess;
}

EXPORT int cuMemcpyHtoDAsync_v2(std::uint64_t to, const void* from, std::size_t bytes, Stream* stream) {
  ENTER(enter("cuMemcpyHtoDAsync_v2"));
  ENTER(check_stream(stream));
  return enqueue(stream, copy(to, from, bytes, true));
}

EXPORT int cuMemcpyDtoHAsync_v2(void* to, std::uint64_t from, std::size_t bytes, Stream* stream) {
  ENTER(enter("cuMemcpyDtoHAsync_v2"));
  ENTER(check_stream(stream));
  return enqueue(stream, copy(from, to, bytes, false));
}

EXPORT int cuStreamCreate(Stream** stream, unsigned flags) {
  ENTER(enter("cuStreamCreate"));
  if (flags != 1) return kInvalidValue;  // only those that do not wait for the null stream
  const auto seed = static_cast<unsigned>(fake().numbers++);
  *stream = fake().streams.add(std::make_unique<Stream>(*current_context(), fake().pace, seed));
  return kSuccess;
}

EXPORT int cuStreamDestroy_v2(Stream* stream) {
  ENTER(enter("cuStreamDestroy_v2", Needs::kContext));
  ENTER(check_stream(stream));
  {
    const std::lock_guard lock(fake().mutex);
    fake().captures.erase(stream);
  }
  fake().streams.take(stream);
  return kSuccess;
}

EXPORT int cuStreamQuery(Stream* stream) {
  ENTER(enter("cuStreamQuery"));
  ENTER(check_stream(stream));
  if (stream->capturing()) return stream->invalidate(), kCaptureUnsupported;
  if (!stream->idle()) return kNotReady;
  return current_context()->sticky.load();
}

EXPORT int cuStreamSynchronize(Stream* stream) {
  ENTER(enter("cuStreamSynchronize"));
  if (stream == nullptr) {
    stream = null_stream();
  } else {
    ENTER(check_stream(stream));
  }
  if (stream->capturing()) return stream->invalidate(), kCaptureUnsupported;
  stream->wait_idle();
  return current_context()->sticky.load();
}

EXPORT int cuCtxSynchronize() {
  ENTER(enter("cuCtxSynchronize"));
  ENTER(break_captures(
      [](const Stream& stream, std::thread::id) { return &stream.context() == current_context(); }));
  fake().streams.visit([](Stream& stream) {
    if (&stream.context() == current_context()) stream.wait_idle();
  });
  null_stream()->wait_idle();
  return current_context()->sticky.load();
}

EXPORT int cuStreamBeginCapture_v2(Stream* stream, int mode) {
  ENTER(enter("cuStreamBeginCapture_v2"));
  ENTER(check_stream(stream));
  if (mode != 1 || stream->capturing()) return kInvalidValue;  // only thread-local captures let others go on
  stream->begin_capture();
  const std::lock_guard lock(fake().mutex);
  fake().captures[stream] = std::this_thread::get_id();
  return kSuccess;
}

EXPORT int cuStreamEndCapture(Stream* stream, Graph** graph) {
  ENTER(enter("cuStreamEndCapture"));
  ENTER(check_stream(stream));
  {
    const std::lock_guard lock(fake().mutex);
    const auto found = fake().captures.find(stream);
    if (found == fake().captures.end() || found->second != std::this_thread::get_id()) return kInvalidValue;
    fake().captures.erase(found);
  }
  auto work = stream->end_capture();
  if (!work) return kCaptureInvalidated;
  auto made = std::make_unique<Graph>(current_context());
  for (Work& each : *work) made->nodes.push_back(std::make_unique<Work>(std::move(each)));
  *graph = fake().graphs.add(std::move(made));
  return kSuccess;
}

EXPORT int cuGraphCreate(Graph** graph, unsigned flags) {
  ENTER(enter("cuGraphCreate"));
  if (flags != 0) return kInvalidValue;
  *graph = fake().graphs.add(std::make_unique<Graph>(current_context()));
  return kSuccess;
}

EXPORT int cuGraphAddMemcpyNode(Work** node, Graph* graph, Work* const* dependencies, std::size_t count,
                                const CopyParameters* copied, Context* context) {
  ENTER(enter("cuGraphAddMemcpyNode"));
  ENTER(check_handle(fake().graphs, graph));
  if (context != current_context()) return kInvalidContext;
  const bool in = copied->from_type == 1 && copied->to_type == 2;
  const bool out = copied->from_type == 2 && copied->to_type == 1;
  if ((!in && !out) || copied->height != 1 || copied->depth != 1) return kInvalidValue;
  if (copied->from_pitch < copied->bytes || copied->to_pitch < copied->bytes) return kInvalidValue;
  return add_node(graph, node, dependencies, count,
                  in ? copy(copied->to_device, copied->from_host, copied->bytes, true)
                     : copy(copied->from_device, copied->to_host, copied->bytes, false));
}

EXPORT int cuGraphAddKernelNode_v2(Work** node, Graph* graph, Work* const* dependencies, std::size_t count,
                                   const KernelNodeParameters* launched) {
  ENTER(enter("cuGraphAddKernelNode_v2"));
  ENTER(check_handle(fake().graphs, graph));
  Work work;
  ENTER(prepare(reinterpret_cast<Function*>(launched->function), *launched, work));
  return add_node(graph, node, dependencies, count, std::move(work));
}

// Launches run one after the other here, whatever the edges allow.
EXPORT int cuGraphAddDependencies_v2(Graph* graph, Work* const* from, Work* const* to, const EdgeData* edge,
                                     std::size_t count) {
  ENTER(enter("cuGraphAddDependencies_v2"));
  ENTER(check_handle(fake().graphs, graph));
  const auto& nodes = graph->nodes;
  if (!graph->loose || count != 1 || *from != nodes[nodes.size() - 2].get() || *to != nodes.back().get())
    return kInvalidValue;
  if (edge->from_port != kProgrammaticPort || edge->to_port != 0 || edge->type != kProgrammaticEdge)
    return kInvalidValue;
  graph->loose = false;
  return kSuccess;
}

EXPORT int cuGraphInstantiateWithFlags(GraphExec** executable, Graph* graph, unsigned long long flags) {
  ENTER(enter_unsafe("cuGraphInstantiateWithFlags"));
  ENTER(check_handle(fake().graphs, graph));
  if (flags != 0 || graph->loose) return kInvalidValue;
  auto made = std::make_unique<GraphExec>(current_context());
  for (const auto& node : graph->nodes) made->work.push_back(*node);
  *executable = fake().executables.add(std::move(made));
  return kSuccess;
}

EXPORT int cuGraphUpload(GraphExec* executable, Stream* stream) {
  ENTER(enter_unsafe("cuGraphUpload"));
  ENTER(check_stream(stream));
  return check_handle(fake().executables, executable);
}

EXPORT int cuGraphLaunch(GraphExec* executable, Stream* stream) {
  ENTER(enter("cuGraphLaunch"));
  ENTER(check_stream(stream));
  ENTER(check_handle(fake().executables, executable));
  for (const Work& work : executable->work) stream->enqueue(work);
  return kSuccess;
}

EXPORT int cuGraphExecDestroy(GraphExec* executable) {
  ENTER(enter("cuGraphExecDestroy", Needs::kContext));
  ENTER(check_handle(fake().executables, executable));
  fake().executables.take(executable);
  return kSuccess;
}

EXPORT int cuGraphDestroy(Graph* graph) {
  ENTER(enter("cuGraphDestroy", Needs::kContext));
  ENTER(check_handle(fake().graphs, graph));
  fake().graphs.take(graph);
  return kSuccess;
}

EXPORT int cuEventCreate(Event** event, unsigned) {
  ENTER(enter("cuEventCreate"));
  auto made = std::make_unique<Event>();
  made->context = current_context();
  *event = fake().events.add(std::move(made));
  return kSuccess;
}

EXPORT int cuEventDestroy_v2(Event* event) {
  ENTER(enter("cuEventDestroy_v2", Needs::kContext));
  ENTER(check_handle(fake().events, event));
  fake().events.take(event);
  return kSuccess;
}

EXPORT int cuEventRecord(Event* event, Stream* stream) {
  ENTER(enter("cuEventRecord"));
  ENTER(check_stream(stream));
  ENTER(check_handle(fake().events, event));
  std::uint64_t time;
  {
    const std::lock_guard lock(event->mutex);
    time = ++event->recorded;
  }
  stream->enqueue([event, time] {
    if (!fake().events.has(event)) return static_cast<int>(kSuccess);
    const std::lock_guard lock(event->mutex);
    event->done = time;
    event->changed.notify_all();
    return static_cast<int>(kSuccess);
  });
  return kSuccess;
}

EXPORT int cuEventSynchronize(Event* event) {
  ENTER(enter_unsafe("cuEventSynchronize"));
  ENTER(check_handle(fake().events, event));
  std::unique_lock lock(event->mutex);
  // A context that breaks meanwhile runs nothing any more, the event's record included.
  while (event->done != event->recorded && current_context()->sticky.load() == 0) {
    event->changed.wait_for(lock, std::chrono::milliseconds(1));
  }
  return current_context()->sticky.load();
}

EXPORT int cuLaunchKernel(Function* function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                          unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                          Stream* stream, void** parameters, void** extra) {
  ENTER(enter("cuLaunchKernel"));
  ENTER(check_stream(stream));
  Work work;
  ENTER(prepare(function,
                {reinterpret_cast<fused_mlp::cuda::CUfunction>(function), grid_x, grid_y, grid_z, block_x,
                 block_y, block_z, shared_bytes, parameters, extra, nullptr, nullptr},
                work));
  return enqueue(stream, std::move(work));
}

namespace {

void add_kernel(const char* name, fake_cuda_kernel kernel) { fake().executor.add(name, kernel); }

void fail(const char* symbol, int code, int skip, int times) {
  const std::lock_guard lock(fake().mutex);
  fake().failures[symbol] = {code, skip, times};
}

void set_delay_us(unsigned most) { fake().pace.delay_us = most; }

void hold(int held) {
  {
    const std::lock_guard lock(fake().pace.mutex);
    fake().pace.held = held != 0;
  }
  fake().pace.changed.notify_all();
}

unsigned calls(const char* symbol) {
  const std::lock_guard lock(fake().mutex);
  return fake().calls[symbol];
}

fake_cuda_alive alive() {
  std::size_t contexts = 0;
  for (const Context& context : fake().contexts) contexts += static_cast<std::size_t>(context.references);
  return {fake().memory.count(),
          fake().modules.count(),
          fake().streams.count(),
          fake().events.count(),
          fake().graphs.count(),
          fake().executables.count(),
          contexts};
}

void reset() {
  const std::lock_guard lock(fake().mutex);
  fake().failures.clear();
  fake().calls.clear();
  for (Context& context : fake().contexts) context.sticky = 0;
}

}  // namespace

EXPORT const fake_cuda_control* fake_cuda_controls() {
  static constexpr fake_cuda_control control = {add_kernel, fail, set_delay_us, hold, calls, alive, reset};
  return &control;
}
