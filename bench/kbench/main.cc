// sparse-engine-kbench: checks and times the CUDA kernels.
//   --check      checks only: small shapes, fit for compute-sanitizer
//   --few        sample checks five single rows only, prefill 40 tokens a case: for the sanitizer
//   --share I/N  of the checks that are many (sample), every N-th from the I-th on
//   --repeats N  (default 50)       --op NAME: read attention prefill blocks latent quest topk linear moe
//   block_gemm gemm moe_prompt small sample scores keep gguf layer      --device cuda:N
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>

#include "base/fmt.h"
#include "kbench/kbench.h"

namespace se::kbench {

Bench::Bench(const cuda::DeviceFacts& facts, int repeats, Share share)
    : facts_(facts),
      share_(share),
      repeats_(repeats),
      flush_(device_memory(512 << 20)),
      sink_(device_memory(256)) {
  SE_CUDA(cudaMemset(flush_.data(), 1, size_t(flush_.bytes())));
}

cuda::Buffer device_memory(int64_t bytes) {
  auto b = cuda::Buffer::allocate(bytes);
  if (!b.ok()) {
    std::fprintf(stderr, "%s\n", b.status().message().c_str());
    std::exit(1);
  }
  return b.take();
}

Stats Bench::measure(const std::function<void()>& op) {
  const cuda::Graph graph = stream_.capture(op);
  std::vector<double> us;
  cuda::Event begin, end;
  for (int i = 0; i < repeats_ + 5; ++i) {
    read_all(flush_.data(), flush_.bytes(), sink_.data(), stream_);
    stream_.record(begin);
    graph.launch(stream_.get());
    stream_.record(end);
    end.wait();
    if (i >= 5) us.push_back(double(end.microseconds_since(begin)));
  }
  std::sort(us.begin(), us.end());
  const auto at = [&](double f) { return us[size_t(f * double(us.size() - 1) + 0.5)]; };
  return {at(0.5), at(0.1), at(0.9)};
}

Stats Bench::measure_in_a_row(int copies, const std::function<void(int)>& op) {
  const Stats all = measure([&] {
    for (int i = 0; i < copies; ++i) op(i);
  });
  return {all.median / copies, all.p10 / copies, all.p90 / copies};
}

int copies_in_a_row(double bytes) { return int(std::clamp(1.2e9 / std::max(bytes, 1.0), 4.0, 48.0)); }

void Bench::report(
    const std::string& op, const std::string& shape, double bytes, double error, const Stats& s) {
  std::printf("%s\n",
              format("{{\"op\": \"{}\", \"shape\": \"{}\", \"us\": {:.2f}, \"p10\": {:.2f}, \"p90\": {:.2f}, "
                     "\"bytes\": {:.0f}, \"tb_s\": {:.3f}, \"share_of_4.5\": {:.3f}, \"error\": {:.2e}, "
                     "\"repeats\": {}, \"device\": \"{}\"}}",
                     op,
                     shape,
                     s.median,
                     s.p10,
                     s.p90,
                     bytes,
                     bytes / s.median * 1e-6,
                     bytes / s.median * 1e6 / kReadPeak,
                     error,
                     repeats_,
                     facts_.name)
                  .c_str());
  std::fflush(stdout);
}

void Bench::report_flops(
    const std::string& op, const std::string& shape, double flops, double error, const Stats& s) {
  std::printf("%s\n",
              format("{{\"op\": \"{}\", \"shape\": \"{}\", \"us\": {:.2f}, \"p10\": {:.2f}, \"p90\": {:.2f}, "
                     "\"flops\": {:.4e}, \"tflop_s\": {:.1f}, \"error\": {:.2e}, \"repeats\": {}, "
                     "\"device\": \"{}\"}}",
                     op,
                     shape,
                     s.median,
                     s.p10,
                     s.p90,
                     flops,
                     flops / s.median * 1e-6,
                     error,
                     repeats_,
                     facts_.name)
                  .c_str());
  std::fflush(stdout);
}

void Bench::check(const std::string& what, bool good, double error, bool always) {
  ++checks_;
  if (!good) ++failures_;
  if (!good || always) std::printf("%s %s (error %.2e)\n", good ? "ok    " : "FAILED", what.c_str(), error);
  std::fflush(stdout);
}

namespace {

void read_cases(Bench& b) {  // the ceilings: nothing, and a plain read
  b.report("nothing", "empty graph", 0, 0, b.measure([] {}));
  cuda::Buffer little = device_memory(256);
  b.report("nothing", "one small kernel", 0, 0, b.measure([&] {
    read_all(little.data(), 16, little.data(), b.stream());
  }));
  // The sizes of the decode cases too: 8 and 24 experts, 131,072 tokens of KIVI, of FP8 and of latents.
  for (int64_t mib : {16, 36, 64, 80, 108, 132, 144, 256, 2048}) {
    cuda::Buffer from = device_memory(mib << 20), sink = device_memory(256);
    fill_random(from.data(), from.bytes() / 2, true, 1, 7, b.stream());
    const Stats s = b.measure([&] { read_all(from.data(), from.bytes(), sink.data(), b.stream()); });
    b.report("read", format("{} MiB", mib), double(from.bytes()), 0, s);
    if (mib <= 256) {
      const int copies = copies_in_a_row(double(from.bytes()));
      std::deque<cuda::Buffer> all;
      for (int i = 0; i < copies; ++i) {
        all.push_back(device_memory(mib << 20));
        fill_random(all.back().data(), mib << 19, true, 1, uint64_t(i), b.stream());
      }
      const Stats r = b.measure_in_a_row(
          copies, [&](int i) { read_all(all[size_t(i)].data(), mib << 20, sink.data(), b.stream()); });
      b.report("read in a row", format("{} MiB", mib), double(from.bytes()), 0, r);
    }
    const Stats c = b.measure([&] { read_all_by_copies(from.data(), from.bytes(), b.stream()); });
    b.report("read by the copy engine", format("{} MiB", mib), double(from.bytes()), 0, c);
  }
}

int run(int argc, char** argv) {
  bool only_check = false;
  int repeats = 50;
  const char *op = "", *device = "cuda";
  Bench::Share share;
  for (int i = 1; i < argc; ++i) {
    const bool more = i + 1 < argc;
    if (!std::strcmp(argv[i], "--check"))
      only_check = true;
    else if (!std::strcmp(argv[i], "--few"))
      share.few = true;
    else if (!std::strcmp(argv[i], "--repeats") && more)
      repeats = std::max(1, std::atoi(argv[++i]));
    else if (!std::strcmp(argv[i], "--op") && more)
      op = argv[++i];
    else if (!std::strcmp(argv[i], "--device") && more)
      device = argv[++i];
    else if (!std::strcmp(argv[i], "--share") && more &&
             std::sscanf(argv[++i], "%d/%d", &share.at, &share.of) == 2 && share.at >= 0 &&
             share.at < share.of)
      continue;
    else {
      std::fprintf(stderr, "unknown argument '%s': see bench/kbench/main.cc\n", argv[i]);
      return 2;
    }
  }
  const auto facts = cuda::open_device(device);
  if (!facts.ok()) {
    std::fprintf(stderr, "%s\n", facts.status().message().c_str());
    return 1;
  }
  std::printf("# %s\n", cuda::to_string(*facts).c_str());
  Bench b(*facts, repeats, share);
  const auto wanted = [&](const char* name) { return !*op || !std::strcmp(op, name); };
  struct Op {
    const char* name;
    void (*checks)(Bench&);
    void (*cases)(Bench&);
  };
  constexpr Op kOps[] = {{"read", nullptr, read_cases},
                         {"attention", attention_checks, attention_cases},
                         {"prefill", prefill_checks, prefill_cases},
                         {"blocks", blocks_checks, blocks_cases},
                         {"latent", latent_checks, latent_cases},
                         {"quest", quest_checks, quest_cases},
                         {"topk", topk_checks, topk_cases},
                         {"linear", linear_checks, linear_cases},
                         {"moe", moe_checks, moe_cases},
                         {"block_gemm", block_gemm_checks, block_gemm_cases},
                         {"gemm", gemm_checks, gemm_cases},
                         {"moe_prompt", moe_prompt_checks, moe_prompt_cases},
                         {"small", small_checks, small_cases},
                         {"sample", sample_checks, sample_cases},
                         {"scores", scores_checks, scores_cases},
                         {"keep", keep_checks, keep_cases},
                         {"gguf", gguf_checks, gguf_cases},
                         {"layer", nullptr, layer_cases}};
  for (const Op& o : kOps)
    if (wanted(o.name) && o.checks) o.checks(b);
  std::printf("# %d checks, %d failed\n", b.checks(), b.failures());
  for (const Op& o : kOps)
    if (wanted(o.name) && !only_check) o.cases(b);
  std::printf("# %d checks, %d failed\n", b.checks(), b.failures());
  return b.failures() == 0 ? 0 : 1;
}

}  // namespace
}  // namespace se::kbench

int main(int argc, char** argv) { return se::kbench::run(argc, argv); }
