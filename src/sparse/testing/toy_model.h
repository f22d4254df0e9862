// sparse/testing/toy_model.h -- small random transformers without MLPs, and a player that runs sequences
// through the driver as the engine does. Deep enough that an error in one layer reaches the next ones.
#pragma once
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "device/cpu/thread_pool.h"
#include "sparse/driver.h"
#include "sparse/testing/test_model.h"

namespace se::testing {

enum class Toy : uint8_t {
  kPlain,    // grouped heads, full attention
  kNorms,    // and norms of q and k
  kWindows,  // norms, and of six layers all but every third with a window and another RoPE
  kLatent    // MLA: one latent head
};
const char* to_string(Toy kind);

class ToyModel final : public TestModel {
 public:
  explicit ToyModel(Toy kind = Toy::kPlain, uint64_t seed = 1, DType kv_dtype = DType::kF16);
  const ModelKv& kv() const override { return kv_; }
  int hidden() const override { return kHidden; }
  int32_t vocab() const override { return kVocab; }
  void embed(std::span<const int32_t> ids, std::vector<float>& x) const override;
  void layer(int l, std::span<float> x, AttentionPort& port, Stream& stream) const override;

 private:
  static constexpr int kHidden = 48, kVocab = 64;
  struct Layer {
    std::vector<float> q, k, v, o, q_norm, k_norm, kv_b;  // v: empty for MLA; kv_b: its expansion
  };
  ModelKv kv_;
  std::vector<float> table_, frequencies_, local_frequencies_;
  std::vector<Layer> layers_;
};

// One engine in small: a store, a driver, a model.
class Player {
 public:
  explicit Player(const TestModel& model, int64_t kv_bytes = 64 << 20, int threads = 1);
  ~Player();

  std::unique_ptr<PlanSequence> open(const std::string& plan);  // aborts on a bad plan
  std::unique_ptr<PlanSequence> open(std::shared_ptr<const Plan> plan);

  // A turn's prompt in chunks of at most `chunk` tokens (cut where the plan wants it). Returns the last
  // token's hidden state.
  std::vector<float> prefill(PlanSequence& seq, std::span<const int32_t> ids, int64_t chunk, int64_t max_new);

  // One decode step of many sequences, one token each; one hidden state per sequence. statuses: what commit
  // said.
  std::vector<std::vector<float>> decode(std::span<PlanSequence* const> seqs,
                                         std::span<const int32_t> ids,
                                         std::vector<Status>* statuses = nullptr);
  std::vector<float> decode(PlanSequence& seq, int32_t id);

  Driver& driver() { return *driver_; }
  KvStore& store() { return *store_; }

 private:
  const TestModel& model_;
  ThreadPool pool_;
  Stream stream_;
  std::unique_ptr<KvStore> store_;
  std::unique_ptr<Driver> driver_, slicer_;
};

std::vector<int32_t> random_ids(uint64_t seed, int64_t n, int32_t vocab = 64);

}  // namespace se::testing
