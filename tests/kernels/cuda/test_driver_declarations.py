# SPDX-License-Identifier: Apache-2.0
"""The launcher declares the driver's types, functions and constants itself. Where NVIDIA's header is at hand (triton
brings one), the compiler compares them."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
DECLARATIONS = ROOT / "kernels" / "csrc" / "cuda" / "driver.hpp"

# Ours and NVIDIA's, in its words.
CONSTANTS = {
    "kOutOfMemory": "CUDA_ERROR_OUT_OF_MEMORY",
    "kInvalidImage": "CUDA_ERROR_INVALID_IMAGE",
    "kNoBinaryForGpu": "CUDA_ERROR_NO_BINARY_FOR_GPU",
    "kNotReady": "CUDA_ERROR_NOT_READY",
    "kLaunchTimeout": "CUDA_ERROR_LAUNCH_TIMEOUT",
    "kStreamNonBlocking": "CU_STREAM_NON_BLOCKING",
    "kEventDisableTiming": "CU_EVENT_DISABLE_TIMING",
    "kHostPortable": "CU_MEMHOSTALLOC_PORTABLE",
    "kHostDeviceMap": "CU_MEMHOSTALLOC_DEVICEMAP",
    "kHostMemory": "CU_MEMORYTYPE_HOST",
    "kDeviceMemory": "CU_MEMORYTYPE_DEVICE",
    "kFirstCaptureError": "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
    "kLastCaptureError": "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD",
    "kComputeCapabilityMajor": "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR",
    "kComputeCapabilityMinor": "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR",
    "kProgrammaticPort": "CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC",
    "kProgrammaticEdge": "CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC",
    "kMaxDynamicSharedBytes": "CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES",
}
# By member: a structure with all of them at the same offsets is the same.
STRUCTURES = {
    ("CopyParameters", "CUDA_MEMCPY3D"): {
        "from_x": "srcXInBytes",
        "from_type": "srcMemoryType",
        "from_host": "srcHost",
        "from_device": "srcDevice",
        "from_pitch": "srcPitch",
        "from_height": "srcHeight",
        "to_x": "dstXInBytes",
        "to_type": "dstMemoryType",
        "to_host": "dstHost",
        "to_device": "dstDevice",
        "to_pitch": "dstPitch",
        "to_height": "dstHeight",
        "bytes": "WidthInBytes",
        "height": "Height",
        "depth": "Depth",
    },
    ("KernelNodeParameters", "CUDA_KERNEL_NODE_PARAMS"): {
        "function": "func",
        "grid_x": "gridDimX",
        "block_x": "blockDimX",
        "shared_bytes": "sharedMemBytes",
        "parameters": "kernelParams",
        "extra": "extra",
        "kernel": "kern",
        "context": "ctx",
    },
    ("EdgeData", "CUgraphEdgeData"): {"from_port": "from_port", "to_port": "to_port", "type": "type"},
}
PROGRAM = """
#include <cstddef>
#include <cuda.h>
#include <string_view>
#include <type_traits>
#include "cuda/driver.hpp"
namespace ours = fused_mlp::cuda;
template <class T> constexpr std::string_view name() {  // without its namespace
  const std::string_view text = __PRETTY_FUNCTION__;
  const auto begin = text.find("T = ") + 4;
  const auto full = text.substr(begin, text.find_first_of(";]", begin) - begin);
  return full.substr(full.rfind(':') + 1);
}
// Theirs and ours. Handles are pointers to undefined structs, which have the same names in our namespace.
template <class A, class B> constexpr bool alike() {
  if constexpr (std::is_pointer_v<A> && std::is_pointer_v<B>) {
    using To = std::remove_pointer_t<A>;
    using Ours = std::remove_pointer_t<B>;
    if constexpr (std::is_const_v<To> != std::is_const_v<Ours>) return false;
    else return alike<std::remove_const_t<To>, std::remove_const_t<Ours>>();
  } else if constexpr (std::is_enum_v<A>) {  // by number
    return std::is_integral_v<B> && sizeof(A) == sizeof(B);
  } else if constexpr (std::is_class_v<A> || std::is_class_v<B>) {
    return std::is_class_v<A> && std::is_class_v<B> && name<A>() == name<B>();
  } else if constexpr (std::is_integral_v<A> && std::is_integral_v<B>) {
    return sizeof(A) == sizeof(B) && std::is_signed_v<A> == std::is_signed_v<B>;
  } else {
    return std::is_same_v<A, B>;
  }
}
template <class... A, class... B> constexpr bool alike(CUresult (*)(A...), int (*)(B...)) {
  if constexpr (sizeof...(A) == sizeof...(B)) return (alike<A, B>() && ...); else return false;
}
"""


def test_declarations_agree_with_nvidias_header(tmp_path: Path) -> None:
    triton = pytest.importorskip("triton")
    include = Path(triton.__file__).parent / "backends" / "nvidia" / "include"
    compiler = shutil.which("c++")
    if not (include / "cuda.h").exists() or compiler is None:
        pytest.skip("needs cuda.h and a C++ compiler")
    functions = re.findall(r'F\((\w+), "(\w+)"', DECLARATIONS.read_text())
    assert len(functions) == 40
    # Compared member by member below.
    lines = [
        f"template <> constexpr bool alike<{theirs}, ours::{ours}>() {{ return true; }}"
        for ours, theirs in STRUCTURES
    ]
    lines += [f"static_assert(ours::{ours} == {theirs});" for ours, theirs in CONSTANTS.items()]
    # cuda.h declares what is newest under the plain name.
    lines += [
        f"static_assert(alike(decltype(&{symbol}){{}}, decltype(ours::Driver::{member}){{}}));"
        for member, symbol in ((member, re.sub(r"_v\d$", "", symbol)) for member, symbol in functions)
    ]
    for (ours, theirs), members in STRUCTURES.items():
        lines.append(f"static_assert(sizeof(ours::{ours}) == sizeof({theirs}));")
        lines += [
            f"static_assert(offsetof(ours::{ours}, {mine}) == offsetof({theirs}, {its}));"
            for mine, its in members.items()
        ]
    source = tmp_path / "declarations.cpp"
    source.write_text(PROGRAM + "\n".join(lines) + "\n")
    command = [compiler, "-std=c++20", "-fsyntax-only", f"-I{include}", f"-I{ROOT / 'kernels' / 'csrc'}"]
    done = subprocess.run([*command, str(source)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
