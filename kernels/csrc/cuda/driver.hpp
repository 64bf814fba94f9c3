// SPDX-License-Identifier: Apache-2.0
// NVIDIA's driver, libcuda.so.1, loaded at run time: the few types and functions that the launcher uses,
// declared here, so that neither the build nor a machine without a GPU needs CUDA. FUSED_MLP_LIBCUDA names
// another library instead, which is how tests run the launcher on a fake one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

namespace fused_mlp::cuda {

using CUresult = int;
using CUdevice = int;
using CUdeviceptr = std::uint64_t;
using CUcontext = struct CUctx_st*;
using CUmodule = struct CUmod_st*;
using CUfunction = struct CUfunc_st*;
using CUstream = struct CUstream_st*;
using CUevent = struct CUevent_st*;
using CUgraph = struct CUgraph_st*;
using CUgraphExec = struct CUgraphExec_st*;
using CUgraphNode = struct CUgraphNode_st*;

// CUDA_MEMCPY3D. Here always one row: height and depth are 1, and the pitches at least `bytes`.
struct CopyParameters {
  std::size_t from_x = 0, from_y = 0, from_z = 0, from_lod = 0;
  int from_type = 0;  // kHostMemory or kDeviceMemory: which of the two addresses counts
  const void* from_host = nullptr;
  CUdeviceptr from_device = 0;
  void* from_array = nullptr;
  void* from_reserved = nullptr;
  std::size_t from_pitch = 0, from_height = 0;
  std::size_t to_x = 0, to_y = 0, to_z = 0, to_lod = 0;
  int to_type = 0;
  void* to_host = nullptr;
  CUdeviceptr to_device = 0;
  void* to_array = nullptr;
  void* to_reserved = nullptr;
  std::size_t to_pitch = 0, to_height = 0;
  std::size_t bytes = 0, height = 1, depth = 1;
};

// CUDA_KERNEL_NODE_PARAMS of CUDA 12.
struct KernelNodeParameters {
  CUfunction function;
  unsigned grid_x, grid_y, grid_z;
  unsigned block_x, block_y, block_z;
  unsigned shared_bytes;
  void** parameters;
  void** extra;
  void* kernel;       // instead of `function`
  CUcontext context;  // of `kernel`
};

// CUgraphEdgeData.
struct EdgeData {
  unsigned char from_port, to_port, type, reserved[5];
};

// Results that the launcher tells from other failures.
constexpr CUresult kSuccess = 0;
constexpr CUresult kOutOfMemory = 2;
constexpr CUresult kInvalidImage = 200;
constexpr CUresult kNoBinaryForGpu = 209;
constexpr CUresult kNotReady = 600;
constexpr CUresult kLaunchTimeout = 702;
constexpr CUresult kFirstCaptureError = 900, kLastCaptureError = 908;

constexpr unsigned kStreamNonBlocking = 1;  // no order with the legacy default stream
constexpr unsigned kEventDisableTiming = 2;
constexpr unsigned kHostPortable = 1, kHostDeviceMap = 2;
constexpr int kHostMemory = 1, kDeviceMemory = 2;  // of CUmemorytype
constexpr unsigned char kProgrammaticPort = 1, kProgrammaticEdge = 1;
constexpr int kComputeCapabilityMajor = 75, kComputeCapabilityMinor = 76;  // of CUdevice_attribute
constexpr int kMaxDynamicSharedBytes = 8;                                  // of CUfunction_attribute
constexpr unsigned kStaticSharedLimit = 48 * 1024;                         // above it a kernel has to ask

// (member, symbol, parameters). Symbols carry the version of their interface, as cuda.h maps them.
#define FUSED_MLP_CUDA_FUNCTIONS(F)                                                                     \
  F(init, "cuInit", (unsigned flags))                                                                   \
  F(error_name, "cuGetErrorName", (CUresult error, const char** text))                                  \
  F(error_string, "cuGetErrorString", (CUresult error, const char** text))                              \
  F(device_count, "cuDeviceGetCount", (int* count))                                                     \
  F(device_get, "cuDeviceGet", (CUdevice * device, int ordinal))                                        \
  F(device_name, "cuDeviceGetName", (char* name, int length, CUdevice device))                          \
  F(device_attribute, "cuDeviceGetAttribute", (int* value, int attribute, CUdevice device))             \
  F(primary_retain, "cuDevicePrimaryCtxRetain", (CUcontext * context, CUdevice device))                 \
  F(primary_release, "cuDevicePrimaryCtxRelease_v2", (CUdevice device))                                 \
  F(push_context, "cuCtxPushCurrent_v2", (CUcontext context))                                           \
  F(pop_context, "cuCtxPopCurrent_v2", (CUcontext * context))                                           \
  F(module_load, "cuModuleLoadData", (CUmodule * module, const void* image))                            \
  F(module_unload, "cuModuleUnload", (CUmodule module))                                                 \
  F(module_function, "cuModuleGetFunction", (CUfunction * function, CUmodule module, const char* name)) \
  F(function_set, "cuFuncSetAttribute", (CUfunction function, int attribute, int value))                \
  F(memory_alloc, "cuMemAlloc_v2", (CUdeviceptr * address, std::size_t bytes))                          \
  F(memory_free, "cuMemFree_v2", (CUdeviceptr address))                                                 \
  F(host_alloc, "cuMemHostAlloc", (void** memory, std::size_t bytes, unsigned flags))                   \
  F(host_free, "cuMemFreeHost", (void* memory))                                                         \
  F(host_device_pointer, "cuMemHostGetDevicePointer_v2",                                                \
    (CUdeviceptr * address, void* memory, unsigned flags))                                              \
  F(copy_in, "cuMemcpyHtoD_v2", (CUdeviceptr to, const void* from, std::size_t bytes))                  \
  F(copy_in_async, "cuMemcpyHtoDAsync_v2",                                                              \
    (CUdeviceptr to, const void* from, std::size_t bytes, CUstream stream))                             \
  F(copy_out_async, "cuMemcpyDtoHAsync_v2",                                                             \
    (void* to, CUdeviceptr from, std::size_t bytes, CUstream stream))                                   \
  F(stream_create, "cuStreamCreate", (CUstream * stream, unsigned flags))                               \
  F(stream_destroy, "cuStreamDestroy_v2", (CUstream stream))                                            \
  F(stream_query, "cuStreamQuery", (CUstream stream))                                                   \
  F(stream_synchronize, "cuStreamSynchronize", (CUstream stream))                                       \
  F(graph_create, "cuGraphCreate", (CUgraph * graph, unsigned flags))                                   \
  F(graph_add_copy, "cuGraphAddMemcpyNode",                                                             \
    (CUgraphNode * node, CUgraph graph, const CUgraphNode* dependencies, std::size_t count,             \
     const CopyParameters* parameters, CUcontext context))                                              \
  F(graph_add_kernel, "cuGraphAddKernelNode_v2",                                                        \
    (CUgraphNode * node, CUgraph graph, const CUgraphNode* dependencies, std::size_t count,             \
     const KernelNodeParameters* parameters))                                                           \
  F(graph_add_edges, "cuGraphAddDependencies_v2",                                                       \
    (CUgraph graph, const CUgraphNode* from, const CUgraphNode* to, const EdgeData* edges,              \
     std::size_t count))                                                                                \
  F(graph_instantiate, "cuGraphInstantiateWithFlags",                                                   \
    (CUgraphExec * executable, CUgraph graph, unsigned long long flags))                                \
  F(graph_upload, "cuGraphUpload", (CUgraphExec executable, CUstream stream))                           \
  F(graph_launch, "cuGraphLaunch", (CUgraphExec executable, CUstream stream))                           \
  F(graph_exec_destroy, "cuGraphExecDestroy", (CUgraphExec executable))                                 \
  F(graph_destroy, "cuGraphDestroy", (CUgraph graph))                                                   \
  F(event_create, "cuEventCreate", (CUevent * event, unsigned flags))                                   \
  F(event_destroy, "cuEventDestroy_v2", (CUevent event))                                                \
  F(launch_host, "cuLaunchHostFunc", (CUstream stream, void (*function)(void*), void* argument))        \
  F(launch, "cuLaunchKernel",                                                                           \
    (CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,          \
     unsigned block_y, unsigned block_z, unsigned shared_bytes, CUstream stream, void** parameters,     \
     void** extra))

struct Driver {
#define FUSED_MLP_MEMBER(member, symbol, parameters) CUresult(*member) parameters = nullptr;
  FUSED_MLP_CUDA_FUNCTIONS(FUSED_MLP_MEMBER)
#undef FUSED_MLP_MEMBER

  // Loaded and initialised once per process. Throws std::runtime_error, the same every time, where there is
  // none.
  static const Driver& get();

  // "CUDA_ERROR_OUT_OF_MEMORY: out of memory".
  std::string describe(CUresult code) const;
};

// A call of the driver failed. `what()` says which one and why.
class DriverError : public std::runtime_error {
 public:
  DriverError(CUresult code, const char* action);
  DriverError(CUresult code, const std::string& text) : std::runtime_error(text), code_(code) {}
  CUresult code() const noexcept { return code_; }

 private:
  CUresult code_;
};

// Throws DriverError unless the call succeeded. `action` continues "cannot ...".
inline void check(CUresult code, const char* action) {
  if (code != kSuccess) [[unlikely]]
    throw DriverError(code, action);
}

}  // namespace fused_mlp::cuda
