// Sends the demo model its own example row: `example localhost:8001`.
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <iostream>
#include <vector>

#include "fused_mlp/protos/fused_mlp.grpc.pb.h"

namespace pb = fused_mlp::v1;

void check(const grpc::Status& status) {
  if (status.ok()) return;
  std::cerr << status.error_message() << '\n';
  std::exit(1);
}

int main(int, char** arguments) {
  auto channel = grpc::CreateChannel(arguments[1], grpc::InsecureChannelCredentials());
  auto client = pb::Inference::NewStub(channel);
  const auto deadline = std::chrono::system_clock::now() + std::chrono::seconds(10);

  grpc::ClientContext info_context;
  info_context.set_deadline(deadline);
  pb::GetModelRequest wanted;
  wanted.set_model("digits");
  pb::GetModelResponse info;
  check(client->GetModel(&info_context, wanted, &info));
  const auto& row = info.model().versions(0).example();

  grpc::ClientContext context;  // one per call
  context.set_deadline(deadline);
  pb::PredictRequest request;
  request.set_model("digits");
  pb::Tensor& input = *request.mutable_input();
  input.add_shape(1);
  input.add_shape(row.size());
  input.set_dtype(pb::FP32);
  input.set_data(row.data(), row.size() * sizeof(float));
  pb::PredictResponse answer;
  check(client->Predict(&context, request, &answer));

  std::vector<float> scores(answer.output().shape(1));
  std::memcpy(scores.data(), answer.output().data().data(), scores.size() * sizeof(float));
  std::cout << "digit " << std::max_element(scores.begin(), scores.end()) - scores.begin() << '\n';
}
