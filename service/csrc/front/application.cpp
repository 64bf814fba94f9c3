#include "front/application.hpp"

#include <unordered_map>

#include "codec/codec.hpp"
#include "front/predictor.hpp"

namespace fused_mlp::front {
namespace {

class ServiceApplication final : public Application {
 public:
  ServiceApplication(Loop& loop, Engine& engine, const Router& router, Bridge& bridge,
                     const std::vector<PythonRpc>& rpcs)
      : predictor_(loop, engine, router, bridge), python_calls_(bridge, loop) {
    for (const PythonRpc& rpc : rpcs)
      add(rpc.path, std::make_unique<BridgeMethod>(python_calls_, rpc.client_streams));
    add_prediction("/fused_mlp.v1.Inference/Predict", predict_codec(), false);
    add_prediction("/fused_mlp.v1.Inference/PredictStream", predict_codec(), true);
    add_prediction("/inference.GRPCInferenceService/ModelInfer", infer_codec(), false);
    add_prediction("/inference.GRPCInferenceService/ModelStreamInfer", infer_stream_codec(), true);
  }

  Method* find(std::string_view path) override {
    const auto found = methods_.find(path);
    return found == methods_.end() ? nullptr : found->second.get();
  }
  bool work() override { return predictor_.run_ready(); }
  void tick() override { predictor_.tick(); }
  bool idle() const override { return predictor_.idle(); }

 private:
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
  };

  void add(const std::string& path, std::unique_ptr<Method> method) { methods_[path] = std::move(method); }
  void add_prediction(const std::string& path, const Codec& codec, bool streams) {
    add(path, std::make_unique<PredictionMethod>(predictor_, codec, streams));
  }

  Predictor predictor_;
  BridgeCalls python_calls_;
  std::unordered_map<std::string, std::unique_ptr<Method>, Hash, std::equal_to<>> methods_;
};

}  // namespace

std::unique_ptr<Application> make_service_application(Loop& loop, Engine& engine, const Router& router,
                                                      Bridge& bridge, const std::vector<PythonRpc>& rpcs) {
  return std::make_unique<ServiceApplication>(loop, engine, router, bridge, rpcs);
}

}  // namespace fused_mlp::front
