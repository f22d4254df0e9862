// sparse/testing/toy_model.h -- a small random transformer without MLPs, and a player that runs sequences
// through the driver as the engine does. Deep enough that an error in one layer reaches the next ones.
#pragma once
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "device/cpu/thread_pool.h"
#include "sparse/driver.h"

namespace se::testing {

class ToyModel {
 public:
  static constexpr int kLayers = 4, kHidden = 48, kQHeads = 4, kKvHeads = 2, kDim = 32, kVocab = 64;
  explicit ToyModel(uint64_t seed = 1);
  const ModelKv& kv() const { return kv_; }

  void embed(std::span<const int32_t> ids, std::vector<float>& x) const;  // [ids, kHidden]
  void layer(int l, std::span<float> x, AttentionPort& port, Stream& stream) const;

 private:
  struct Layer {
    std::vector<float> q, k, v, o;
  };
  ModelKv kv_;
  std::vector<float> table_, frequencies_;
  std::vector<Layer> layers_;
};

// One engine in small: a store, a driver, a model.
class Player {
 public:
  explicit Player(const ToyModel& model, int64_t kv_bytes = 64 << 20, int threads = 2);
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
  const ToyModel& model_;
  ThreadPool pool_;
  Stream stream_;
  std::unique_ptr<KvStore> store_;
  std::unique_ptr<Driver> driver_, slicer_;
};

std::vector<int32_t> random_ids(uint64_t seed, int64_t n);

}  // namespace se::testing
