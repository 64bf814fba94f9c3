// SPDX-License-Identifier: Apache-2.0
#include "executor.hpp"

#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <type_traits>

extern char** environ;

namespace fake_cuda {

namespace {

constexpr int kSuccess = 0, kIllegalAddress = 700, kSystemError = 999;

std::string setting(const char* name) {
  const char* const text = std::getenv(name);
  return text != nullptr ? text : "";
}

template <class T>
void put(std::string& out, T value) {
  static_assert(std::is_trivially_copyable_v<T>);
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

void put_text(std::string& out, const std::string& text) {
  put(out, static_cast<std::uint32_t>(text.size()));
  out += text;
}

// As PTX lays parameters out: each at a multiple of its own size.
std::string pack(const Launch& launch) {
  std::string out;
  for (std::size_t i = 0; i < launch.parameters.size(); ++i) {
    const std::size_t bytes = launch.entry.parameters[i];
    out.resize((out.size() + bytes - 1) / bytes * bytes);
    out.append(reinterpret_cast<const char*>(&launch.parameters[i]), bytes);
  }
  return out;
}

bool write_all(int file, const char* data, std::size_t bytes) {
  while (bytes > 0) {
    const ssize_t written = send(file, data, bytes, MSG_NOSIGNAL);
    if (written <= 0) return false;
    data += written;
    bytes -= static_cast<std::size_t>(written);
  }
  return true;
}

bool read_all(int file, void* data, std::size_t bytes) {
  auto* at = static_cast<char*>(data);
  while (bytes > 0) {
    const ssize_t got = read(file, at, bytes);
    if (got <= 0) return false;
    at += got;
    bytes -= static_cast<std::size_t>(got);
  }
  return true;
}

Memory* the_memory = nullptr;
thread_local bool out_of_bounds = false;

void* translate(std::uint64_t address, std::size_t bytes) {
  const std::size_t offset = the_memory->offset_of_device(address);
  if (the_memory->holds(offset, bytes)) return the_memory->host_address(offset);
  out_of_bounds = true;
  return nullptr;
}

}  // namespace

std::vector<Entry> entries_of(const std::string& ptx) {
  std::vector<Entry> found;
  for (std::size_t at = ptx.find(".entry "); at != std::string::npos; at = ptx.find(".entry ", at + 1)) {
    const std::size_t open = ptx.find('(', at), close = ptx.find(')', at);
    if (open == std::string::npos || close == std::string::npos) break;
    Entry made{ptx.substr(at + 7, open - at - 7), {}};
    while (std::isspace(static_cast<unsigned char>(made.name.back())) != 0) made.name.pop_back();
    // `.param .u64 .ptr .global .align 1 name`: the first type after `.param` has the bits.
    for (std::size_t p = ptx.find(".param .", open); p < close; p = ptx.find(".param .", p + 1)) {
      const std::size_t digits = ptx.find_first_of("0123456789", p);
      made.parameters.push_back(std::strtoul(ptx.c_str() + digits, nullptr, 10) / 8);
    }
    found.push_back(made);
  }
  return found;
}

Executor::Executor(Memory& memory)
    : memory_(memory),
      command_(setting("FAKE_CUDA_EXECUTOR")),
      empty_(setting("FAKE_CUDA_KERNELS") == "empty") {
  the_memory = &memory;
}

Executor::~Executor() {
  if (socket_ >= 0) close(socket_);  // its end
  if (process_ > 0) waitpid(process_, nullptr, 0);
}

void Executor::add(const std::string& name, fake_cuda_kernel kernel) {
  const std::lock_guard lock(mutex_);
  kernels_[name] = kernel;
}

bool Executor::knows(const std::string& name) {
  const std::lock_guard lock(mutex_);
  return empty_ || !command_.empty() || kernels_.contains(name);
}

int Executor::load(std::uint64_t module, const std::string& ptx) {
  if (command_.empty()) return kSuccess;
  std::string request;
  put(request, std::uint32_t{1});
  put(request, module);
  put(request, static_cast<std::uint64_t>(ptx.size()));
  return ask(request + ptx);
}

int Executor::run(const Launch& launch) {
  fake_cuda_kernel kernel = nullptr;
  {
    const std::lock_guard lock(mutex_);
    const auto found = kernels_.find(launch.entry.name);
    if (found != kernels_.end()) kernel = found->second;
  }
  if (kernel != nullptr) {
    fake_cuda_launch call{};
    std::memcpy(call.grid, launch.grid, sizeof call.grid);
    std::memcpy(call.block, launch.block, sizeof call.block);
    call.shared_bytes = launch.shared_bytes;
    call.parameters = launch.parameters.data();
    call.at = translate;
    out_of_bounds = false;
    kernel(&call);
    return out_of_bounds ? kIllegalAddress : kSuccess;
  }
  if (command_.empty()) return kSuccess;  // empty
  std::string request;
  put(request, std::uint32_t{2});
  put(request, launch.module);
  for (const std::uint32_t size : launch.grid) put(request, size);
  for (const std::uint32_t size : launch.block) put(request, size);
  put(request, launch.shared_bytes);
  put_text(request, launch.entry.name);
  put_text(request, pack(launch));
  const auto allocations = memory_.allocations();
  put(request, static_cast<std::uint32_t>(allocations.size()));
  for (const auto& [address, bytes] : allocations) put(request, address), put(request, bytes);
  return ask(request);
}

int Executor::ask(const std::string& request) {
  const std::lock_guard lock(mutex_);
  if (process_ < 0) start_process();
  std::uint32_t head[2] = {kSystemError, 0};
  if (!write_all(socket_, request.data(), request.size()) || !read_all(socket_, head, sizeof head)) {
    std::fprintf(stderr, "fake CUDA: the executor has ended\n");
    return kSystemError;
  }
  std::string text(head[1], '\0');
  read_all(socket_, text.data(), text.size());
  if (!text.empty()) std::fprintf(stderr, "fake CUDA: %s\n", text.c_str());
  return static_cast<int>(head[0]);
}

void Executor::start_process() {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) std::abort();
  constexpr int kSocket = 50, kMemory = 51;  // in the child, and clear of what Python may have open
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], kSocket);
  posix_spawn_file_actions_adddup2(&actions, memory_.file(), kMemory);
  const std::string line = "exec " + command_ + " " + std::to_string(kSocket) + " " +
                           std::to_string(kMemory) + " " + std::to_string(memory_.device_address(0)) + " " +
                           std::to_string(memory_.size());
  const char* const arguments[] = {"/bin/sh", "-c", line.c_str(), nullptr};
  if (posix_spawn(&process_, arguments[0], &actions, nullptr, const_cast<char**>(arguments), environ) != 0)
    std::abort();
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  socket_ = ends[0];
}

}  // namespace fake_cuda
