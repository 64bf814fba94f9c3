// SPDX-License-Identifier: Apache-2.0
// Many Predicts at once with the stock gRPC C++ library: `load TARGET CALLS AT_ONCE DEADLINE_MS`; prints one JSON
// object.
#include <grpcpp/grpcpp.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "fused_mlp/protos/fused_mlp.grpc.pb.h"

namespace pb = fused_mlp::v1;

namespace {

std::mutex lock;
std::map<int, int> failed;  // by gRPC code
std::string text;           // of the last failure

std::string quoted(std::string value) {
  for (char& c : value) {
    if (c == '"' || c == '\\' || static_cast<unsigned char>(c) < ' ') c = ' ';
  }
  return '"' + value + '"';
}

void predict(pb::Inference::Stub& stub, int id, std::chrono::milliseconds deadline) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + deadline);
  pb::PredictRequest request;
  request.set_model("digits");
  request.set_request_id(std::to_string(id));
  request.mutable_input()->add_shape(1);
  request.mutable_input()->add_shape(64);
  request.mutable_input()->set_data(std::string(256, '\0'));
  pb::PredictResponse answer;
  grpc::Status status = stub.Predict(&context, request, &answer);
  if (status.ok() && (answer.request_id() != request.request_id() || answer.output().data().size() != 40)) {
    status = grpc::Status(grpc::StatusCode::DATA_LOSS, "the wrong answer: " + answer.ShortDebugString());
  }
  if (status.ok()) return;
  const std::lock_guard guard(lock);
  ++failed[status.error_code()];
  text = status.error_message();
}

}  // namespace

int main(int, char** arguments) {
  const int calls = std::atoi(arguments[2]);
  const int at_once = std::atoi(arguments[3]);
  const std::chrono::milliseconds deadline(std::atoi(arguments[4]));
  auto stub = pb::Inference::NewStub(grpc::CreateChannel(arguments[1], grpc::InsecureChannelCredentials()));
  std::atomic<int> next{0};
  std::vector<std::thread> workers;
  for (int i = 0; i < at_once; ++i) {
    workers.emplace_back([&] {
      for (int id = ++next; id <= calls; id = ++next) predict(*stub, id, deadline);
    });
  }
  for (std::thread& worker : workers) worker.join();
  int lost = 0;
  std::string codes;
  for (const auto& [code, count] : failed) {
    lost += count;
    codes += (codes.empty() ? "" : ", ") + quoted(std::to_string(code)) + ": " + std::to_string(count);
  }
  std::cout << "{\"sent\": " << calls << ", \"ok\": " << calls - lost << ", \"failed\": {" << codes
            << "}, \"text\": " << quoted(text) << "}\n";
}
