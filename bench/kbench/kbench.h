// bench/kbench/kbench.h -- measuring one op on the GPU: L2 flushed by reading before each repeat, CUDA
// events, median with p10 and p90, one JSON line a case. Every case is checked against a double reference
// first.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "device/cuda/device.h"
#include "device/cuda/memory.h"
#include "device/cuda/stream.h"

namespace se::kbench {

constexpr double kReadPeak = 4.5e12;  // bytes/s that the bars of the project count as the whole

struct Stats {
  double median = 0, p10 = 0, p90 = 0;  // microseconds
};

class Bench {
 public:
  // Where an op asks: this process takes every of-th of its checks, from the at-th on; few: as few rows as
  // show all of the code, for racecheck, which takes ten seconds for a row of a cluster's.
  struct Share {
    int at = 0, of = 1;
    bool few = false;
  };
  Bench(const cuda::DeviceFacts& facts, int repeats, Share share);
  cuda::Stream& stream() { return stream_; }
  // Of `op` as enqueued on stream(), replayed from a graph, each time after a read of 512 MiB.
  Stats measure(const std::function<void()>& op);
  // Of one of `copies` of an op, op(0), op(1), .., one after another in one graph: what it takes among other
  // kernels, where a launch and what lies ahead of pdl_wait() hide behind the kernel before. Each copy must
  // have data of its own, all of them several times what L2 holds (copies_in_a_row).
  Stats measure_in_a_row(int copies, const std::function<void(int)>& op);
  // The JSON line of a measured case.
  void report(const std::string& op, const std::string& shape, double bytes, double error, const Stats& s);
  // The same for what arithmetic bounds: flops instead of bytes.
  void report_flops(
      const std::string& op, const std::string& shape, double flops, double error, const Stats& s);
  // Counts a check; prints it if it failed, or `always`.
  void check(const std::string& what, bool good, double error, bool always = false);
  bool few() const { return share_.few; }
  bool next_is_ours() { return met_++ % share_.of == share_.at; }
  int failures() const { return failures_; }
  int checks() const { return checks_; }

 private:
  cuda::DeviceFacts facts_;
  Share share_;
  int repeats_, failures_ = 0, checks_ = 0, met_ = 0;
  cuda::Stream stream_;
  cuda::Buffer flush_, sink_;
};

int copies_in_a_row(double bytes);  // 4 to 48, together 1.2 GB if that is enough
cuda::Buffer device_memory(int64_t bytes);
// Random 16-bit floats, uniform in [-scale, scale), bf16 or f16.
void fill_random(void* to, int64_t elements, bool bf16, float scale, uint64_t seed, cuda::Stream& stream);
void read_all(const void* from, int64_t bytes, void* sink, cuda::Stream& stream);
void read_all_by_copies(const void* from, int64_t bytes, cuda::Stream& stream);  // whole 16 KiB
// Random bytes (a multiple of 8); unless `any`, E4M3 codes below 8 in size.
void fill_bytes(void* to, int64_t bytes, bool any, uint64_t seed, cuda::Stream& stream);
void fill_floats(void* to, int64_t n, float least, float most, uint64_t seed, cuda::Stream& stream);
// A kernel that lets the next one start, waits 50 us and then copies; at most 16.
struct LateWrite {
  void* to;
  const void* from;
  int64_t bytes;
};
void write_late(const std::vector<LateWrite>& writes, cuda::Stream& stream);
// Reads pieces of 4 KiB at `offsets` (device).
void gather_all(
    const void* from, const int64_t* offsets, int64_t pieces, int blocks, void* sink, cuda::Stream& stream);
// Channel 0 (BF16) of all `items` rows of row_bytes of (page, head) i: value[i]. Heads of a page lie one
// after another.
void set_channel_0(void* arena,
                   int64_t pages_heads,
                   int items,
                   int row_bytes,
                   int heads,
                   int64_t page_bytes,
                   const float* value,
                   cuda::Stream& stream);
float e4m3_to_f32(uint8_t code);                // host
float random_float(uint64_t seed, uint64_t i);  // host: uniform in [-1, 1)

template <typename T>
cuda::Buffer upload(const std::vector<T>& host) {
  cuda::Buffer b = device_memory(int64_t(host.size() * sizeof(T)) + 16);
  SE_CUDA(cudaMemcpy(b.data(), host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice));
  SE_CUDA(
      cudaStreamSynchronize(nullptr));  // pageable memory may still be on its way; our stream does not wait
  return b;
}
template <typename T>
std::vector<T> download(const void* from, int64_t n) {
  std::vector<T> host(static_cast<size_t>(n));
  SE_CUDA(cudaMemcpy(host.data(), from, size_t(n) * sizeof(T), cudaMemcpyDeviceToHost));
  return host;
}

void attention_checks(Bench& bench);
void attention_cases(Bench& bench);
void prefill_checks(Bench& bench);
void prefill_cases(Bench& bench);
void blocks_checks(Bench& bench);  // FlashPrefill
void blocks_cases(Bench& bench);
void latent_checks(Bench& bench);
void latent_cases(Bench& bench);
void quest_checks(Bench& bench);
void quest_cases(Bench& bench);
void topk_checks(Bench& bench);
void topk_cases(Bench& bench);
void linear_checks(Bench& bench);
void linear_cases(Bench& bench);
void moe_checks(Bench& bench);
void moe_cases(Bench& bench);
void block_gemm_checks(Bench& bench);  // dense products of prompts: FP8, 16-bit
void block_gemm_cases(Bench& bench);
void gemm_checks(Bench& bench);
void gemm_cases(Bench& bench);
void moe_prompt_checks(Bench& bench);
void moe_prompt_cases(Bench& bench);
void small_checks(Bench& bench);  // norms, RoPE and KV write, argmax
void small_cases(Bench& bench);
void sample_checks(Bench& bench);
void sample_cases(Bench& bench);
void scores_checks(Bench& bench);  // SnapKV's votes, pooling
void scores_cases(Bench& bench);
void keep_checks(Bench& bench);
void keep_cases(Bench& bench);
void gguf_checks(Bench& bench);
void gguf_cases(Bench& bench);
void layer_cases(Bench& bench);  // the chained decode layers

}  // namespace se::kbench
