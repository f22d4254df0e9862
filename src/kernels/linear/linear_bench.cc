// Speed of linear(): shapes of the models we measure, decode and prompts. One line a case: bytes of weights
// read, operations (a multiply-add is 2), median, p10 and p90 of the wall time after warm-up. Between two
// runs of a case other weights are read, as many as `--cold` MB (default 512): decode finds its weights in
// memory, not in a cache, as a step of a large model does; --cold 0 leaves them where they are.
//
//   linear_bench [--threads N] [--repeats N] [--cold MB] [--exact] [--check] [part of a case's name]
// --exact times exact mode (rows widened to f32); --check compares the first rows with the reference level
// instead of timing.
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "base/fmt.h"
#include "base/half.h"
#include "base/rng.h"
#include "device/cpu/isa.h"
#include "device/cpu/thread_pool.h"
#include "kernels/linear/linear.h"

namespace se {
namespace {

double now_us() {
  timespec t;
  ::clock_gettime(CLOCK_MONOTONIC, &t);
  return double(t.tv_sec) * 1e6 + double(t.tv_nsec) * 1e-3;
}

struct Options {
  int threads = available_cores(), repeats = 15;
  int64_t cold_bytes = int64_t(512) << 20;
  bool check = false;
  Compute compute = Compute::kDefault;
  std::string part;
};

struct Case {
  const char* model;
  DType dtype;
  int64_t out, in, tokens;
};

// Codes of any value and scales of ordinary size.
Buffer random_weights(DType dtype, int64_t n) {
  Buffer b = Buffer::allocate(bytes_of(dtype, n)).take();
  Rng rng(1);
  uint64_t state = 88172645463325252u;
  for (int64_t i = 0; i + 8 <= b.bytes(); i += 8) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    std::memcpy(b.data() + i, &state, 8);
  }
  const int step = block_bytes(dtype);
  const float value = 0.01f;
  const uint16_t half = f32_to_f16(value), brain = f32_to_bf16(value);
  const int field = dtype == DType::kQ6_K   ? 208
                    : dtype == DType::kQ3_K ? 108
                    : dtype == DType::kQ2_K ? 80
                                            : 0;
  constexpr DType kTwo[] = {DType::kQ4_1, DType::kQ5_1, DType::kQ2_K, DType::kQ4_K, DType::kQ5_K};
  const bool two = std::find(std::begin(kTwo), std::end(kTwo), dtype) != std::end(kTwo);
  for (int64_t at = 0; at < b.bytes(); at += step) {
    if (dtype == DType::kF32)
      std::memcpy(b.data() + at, &value, 4);
    else
      std::memcpy(b.data() + at + field, dtype == DType::kBF16 ? &brain : &half, 2);
    if (two) std::memcpy(b.data() + at + field + 2, &half, 2);
  }
  return b;
}

struct Problem {
  Buffer rows, packed;
  TensorView view;
  Weight weight;
  std::vector<float> x, y;
  explicit Problem(const Case& c)
      : rows(random_weights(c.dtype, c.out * c.in)),
        view(TensorView::of(rows.data(), c.dtype, {c.out, c.in})),
        weight(view),
        x(size_t(c.tokens * c.in)),
        y(size_t(c.tokens * c.out)) {
    Rng rng(2);
    for (float& v : x) v = rng.normal();
    if (const int64_t bytes = packed_bytes(view); bytes > 0) {
      packed = Buffer::allocate(bytes).take();
      std::byte* to = reinterpret_cast<std::byte*>(packed.data());
      pack(view, 0, packed_panels(view), to);
      weight = {view, to};
    }
  }
  void run(Compute compute, Arena& scratch, Stream& stream) {
    const int64_t tokens = int64_t(x.size()) / view.shape[1];
    linear(TensorView::of(x.data(), DType::kF32, {tokens, view.shape[1]}),
           weight,
           {},
           TensorView::of(y.data(), DType::kF32, {tokens, view.shape[0]}),
           compute,
           scratch,
           stream);
  }
};

struct Bench {
  explicit Bench(const Options& options) : o(options) {}
  const Options& o;
  ThreadPool pool{o.threads};
  Stream stream{pool};
  Arena scratch;
  Buffer cold = Buffer::allocate(o.cold_bytes).take();

  void evict() {
    constexpr int64_t kPiece = 1 << 20;
    pool.run(cold.bytes() / kPiece, [&](int64_t i, int) {
      for (int64_t at = i * kPiece; at < (i + 1) * kPiece; at += 64) ++cold.data()[at];
    });
  }

  void time(const Case& c, const std::string& name) {
    Problem p(c);
    std::vector<double> us;
    for (int i = 0; i < o.repeats + 2; ++i) {
      evict();
      const double from = now_us();
      p.run(o.compute, scratch, stream);
      if (i >= 2) us.push_back(now_us() - from);
    }
    std::sort(us.begin(), us.end());
    const size_t n = us.size();
    const double bytes = double(bytes_of(c.dtype, c.out * c.in)),
                 ops = 2.0 * double(c.out) * double(c.in) * double(c.tokens);
    std::printf("%-34s %7.2f MB %8.3f GOP  %9.1f us (%9.1f - %9.1f) %6.1f GB/s %7.1f GOP/s\n",
                name.c_str(),
                bytes / 1e6,
                ops / 1e9,
                us[n / 2],
                us[n / 10],
                us[n * 9 / 10],
                bytes / us[n / 2] / 1e3,
                ops / us[n / 2] / 1e3);
  }

  bool same(const Case& c, const std::string& name) {
    Case small = c;
    small.out = std::min<int64_t>(c.out, 100);
    const cpu::Isa level = cpu::isa();
    Problem p(small);
    p.run(o.compute, scratch, stream);
    const std::vector<float> fast = p.y;
    cpu::set_isa_for_test(cpu::Isa::kBaseline);
    p.run(o.compute, scratch, stream);
    cpu::set_isa_for_test(level);
    const bool equal = std::memcmp(fast.data(), p.y.data(), fast.size() * sizeof(float)) == 0;
    std::printf("%-34s %s\n", name.c_str(), equal ? "same bits" : "DIFFERS");
    return equal;
  }
};

constexpr Case kCases[] = {{"smollm2.gate_up", DType::kQ4_1, 3072, 576, 0},
                           {"smollm2.down", DType::kQ4_1, 576, 1536, 0},
                           {"smollm2.head", DType::kQ8_0, 49152, 576, 0},
                           {"qwen.gate_up", DType::kQ5_0, 9728, 896, 0},
                           {"qwen.down", DType::kQ4_K, 896, 4864, 0},
                           {"qwen.down", DType::kQ6_K, 896, 4864, 0},
                           {"qwen.o", DType::kQ5_0, 896, 896, 0},
                           {"qwen.head", DType::kQ8_0, 151936, 896, 0},
                           {"any", DType::kQ4_0, 4096, 1024, 0},
                           {"any", DType::kQ5_1, 4096, 1024, 0},
                           {"any", DType::kQ2_K, 4096, 1024, 0},
                           {"any", DType::kQ3_K, 4096, 1024, 0},
                           {"any", DType::kQ4_K, 4096, 1024, 0},
                           {"any", DType::kQ5_K, 4096, 1024, 0},
                           {"any", DType::kF16, 4096, 1024, 0},
                           {"any", DType::kBF16, 4096, 1024, 0},
                           {"any", DType::kF32, 4096, 1024, 0}};

int run(const Options& o) {
  std::printf("threads %d, isa %s, cold %lld MB\n",
              o.threads,
              cpu::to_string(cpu::isa()),
              static_cast<long long>(o.cold_bytes >> 20));
  Bench bench(o);
  bool good = true;
  for (Case c : kCases) {
    for (const int64_t tokens : {1, 2, 4, 8, 16, 512}) {
      c.tokens = tokens;
      if (tokens > 16 && c.out > 20000) continue;  // heads see few tokens
      const std::string name = format("{}.{}.{}", c.model, to_string(c.dtype), tokens);
      if (name.find(o.part) == std::string::npos) continue;
      if (o.check)
        good = bench.same(c, name) && good;
      else
        bench.time(c, name);
    }
  }
  return good ? 0 : 1;
}

}  // namespace
}  // namespace se

int main(int argc, char** argv) {
  se::Options o;
  for (int i = 1; i < argc; ++i) {
    const std::string a = argv[i];
    const auto number = [&] { return i + 1 < argc ? std::atoll(argv[++i]) : 0; };
    if (a == "--threads")
      o.threads = int(std::max(1LL, number()));
    else if (a == "--repeats")
      o.repeats = int(std::max(1LL, number()));
    else if (a == "--cold")
      o.cold_bytes = int64_t(std::max(0LL, number())) << 20;
    else if (a == "--exact")
      o.compute = se::Compute::kExact;
    else if (a == "--check")
      o.check = true;
    else
      o.part = a;
  }
  return se::run(o);
}
