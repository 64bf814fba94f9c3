// SPDX-License-Identifier: Apache-2.0
#include "front/methods/echo.hpp"

#include <algorithm>

#include "front/grpc/call.hpp"

namespace fused_mlp::front {
namespace {

class EchoMethod final : public Method {
 public:
  bool client_streams() const override { return false; }
  void on_message(Call& call, Message&& message) override {
    std::copy_n(message.data(), message.size(), call.add_message(message.size()));
    call.finish();
  }
};

class EchoApplication final : public Application {
 public:
  Method* find(std::string_view) override { return &method_; }

 private:
  EchoMethod method_;
};

}  // namespace

std::unique_ptr<Application> make_echo_application() { return std::make_unique<EchoApplication>(); }

}  // namespace fused_mlp::front
