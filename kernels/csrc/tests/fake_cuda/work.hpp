// SPDX-License-Identifier: Apache-2.0
// The work of a stream or a graph: copies and kernels, checked when they are enqueued and again as they run.
#pragma once

#include "../../cuda/driver.hpp"
#include "state.hpp"

namespace fake_cuda {

using fused_mlp::cuda::CopyParameters;
using fused_mlp::cuda::KernelNodeParameters;

// Work that copies between page-locked memory and the device; empty if it cannot. Checked again as it runs:
// either may have been freed.
Work copy(std::uint64_t device, const void* host, std::size_t bytes, bool in);

// Work that runs a kernel.
int prepare(Function* function, const KernelNodeParameters& given, Work& work);

int enqueue(Stream* stream, Work work);

}  // namespace fake_cuda
