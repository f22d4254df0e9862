// The conformance suite of plans on real families: tiny random checkpoints, F16 as stored, whole layers.
#include <gtest/gtest.h>

#include <memory>

#include "device/cpu/thread_pool.h"
#include "model/checkpoint.h"
#include "model/testing/tiny_checkpoint.h"
#include "sparse/testing/conformance.h"

namespace se::testing {
namespace {

// A choice of experts is a jump: a rounding that a lossy store may make would show as another token's answer.
// Here all of them are used, so that the hidden states move as far as K and V did.
std::string smooth_file(const std::string& name) {
  GgufWriter file = TinyCheckpoint::load(name).gguf(DType::kF16);
  if (name.starts_with("glm")) file.set("deepseek2.expert_used_count", uint32_t(8));
  return file.bytes();
}

class FamilyModel final : public TestModel {
 public:
  explicit FamilyModel(const std::string& name) : file_(smooth_file(name)) {
    auto loaded = load_model(file_.path());
    SE_CHECK(loaded.ok(), "{}", loaded.status().message());
    loaded_ = loaded.take();
    kv_ = loaded_.model->kv(Compute::kDefault);
  }
  const ModelKv& kv() const override { return kv_; }
  int hidden() const override { return loaded_.model->shape().hidden; }
  int32_t vocab() const override { return int32_t(loaded_.model->shape().vocab); }
  void embed(std::span<const int32_t> ids, std::vector<float>& x) const override {
    x.resize(ids.size() * size_t(hidden()));
    ThreadPool pool(1);
    Stream stream(pool);
    loaded_.model->embed(ids, view(x), stream);
  }
  void layer(int l, std::span<float> x, AttentionPort& port, Stream& stream) const override {
    loaded_.model->layer(l, view(x), port, Compute::kDefault, scratch_, stream);
  }

 private:
  TensorView view(std::span<float> x) const {
    return TensorView::of(x.data(), DType::kF32, {int64_t(x.size()) / hidden(), int64_t(hidden())});
  }
  TempFile file_;
  LoadedModel loaded_;
  ModelKv kv_;
  mutable Arena scratch_;
};

}  // namespace
}  // namespace se::testing

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  for (const char* name : {"qwen2", "gemma3", "glm4_moe_lite"})
    se::testing::add_conformance_tests(name, std::make_shared<se::testing::FamilyModel>(name));
  return RUN_ALL_TESTS();
}
