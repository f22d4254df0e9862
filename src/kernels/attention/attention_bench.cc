// Speed of paged attention: decode rows over a long past, prompt chunks, logits of a window. One line a case:
// bytes of K and V read, FLOP (a multiply-add is 2), median, p10 and p90 of the wall time after warm-up, and
// the p10 of the CPU time over all threads, which is the one to read with one thread on a busy machine.
// Even that one moves by a factor of 3 with the neighbours' use of the last cache: compare figures of one
// quiet machine only, and read them against the plain sums of the same run.
//
//   attention_bench [threads] [repeats] [part of a case's name]
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>

#include "device/cpu/isa.h"
#include "kernels/attention/attention_testing.h"
#include "kernels/attention/latent.h"

namespace se {
namespace {

using namespace attention_testing;  // NOLINT: shared with the tests

double now_us(clockid_t clock) {
  timespec t;
  ::clock_gettime(clock, &t);
  return double(t.tv_sec) * 1e6 + double(t.tv_nsec) * 1e-3;
}

void report(const char* name, double bytes, double flop, int repeats, const std::function<void()>& fn) {
  std::vector<double> wall, cpu;
  for (int i = 0; i < repeats + 3; ++i) {
    const double wall0 = now_us(CLOCK_MONOTONIC), cpu0 = now_us(CLOCK_PROCESS_CPUTIME_ID);
    fn();
    if (i < 3) continue;
    cpu.push_back(now_us(CLOCK_PROCESS_CPUTIME_ID) - cpu0);
    wall.push_back(now_us(CLOCK_MONOTONIC) - wall0);
  }
  std::sort(wall.begin(), wall.end());
  std::sort(cpu.begin(), cpu.end());
  const size_t n = wall.size();
  std::printf(
      "%-34s %8.2f MB %7.3f GFLOP  wall %9.1f us (%9.1f - %9.1f) %5.1f GB/s %5.1f GFLOP/s  cpu %9.1f us "
      "%5.1f GB/s %5.1f GFLOP/s\n",
      name,
      bytes / 1e6,
      flop / 1e9,
      wall[n / 2],
      wall[n / 10],
      wall[n * 9 / 10],
      bytes / wall[n / 2] / 1e3,
      flop / wall[n / 2] / 1e3,
      cpu[n / 10],
      bytes / cpu[n / 10] / 1e3,
      flop / cpu[n / 10] / 1e3);
}

struct Bench {
  Stream& stream;
  int repeats;
  std::string only;

  bool skips(const char* name) const { return std::string(name).find(only) == std::string::npos; }

  // `rows` rows of `fresh` tokens over `past` ones. coded: through a loader, as codecs do.
  void attend(
      const char* name, const Shape& s, int64_t past, int64_t fresh, int rows = 1, bool coded = false) {
    if (skips(name)) return;
    const Tokens x(s, past + fresh, 1);
    Scene scene(s, 1, 0, 256 << 20);
    for (int i = 0; i < rows; ++i) scene.add_row(x, past, fresh, 256);
    scene.build();
    if (fresh == 1) scene.step().decode_rows = rows;
    const double keys = double(rows) * (double(fresh) * double(past) + double(fresh) * double(fresh + 1) / 2);
    const double bytes =
        double(rows) * double(past) * s.kv_heads * (s.k_dim + s.v_dim) * block_bytes(s.dtype);
    report(name, bytes, 2 * keys * s.q_heads * (s.k_dim + s.v_dim), repeats, [&] {
      if (coded)
        cpu::attend_tiles(scene.args(), scene.part(), s.k_dim, s.v_dim, s.kv_heads, load_plain, stream);
      else
        attend_plain(scene.args(), scene.part(), stream);
    });
  }

  // A prompt's chunk whose tiles read one block of 128 keys in `every`, and the newest two.
  void blocks(const char* name, const Shape& s, int64_t past, int64_t fresh, int every) {
    if (skips(name)) return;
    const Tokens x(s, past + fresh, 1);
    Scene scene(s, 1, 0, 256 << 20);
    scene.add_row(x, past, fresh, 256);
    scene.build();
    const int64_t group = s.q_heads / s.kv_heads, tiles = (fresh * group + 127) / 128,
                  items = tiles * s.kv_heads;
    const int64_t cap = (past + fresh + 127) / 128;
    std::vector<int64_t> first(1, 0);
    std::vector<int32_t> counts(static_cast<size_t>(items), 0), which(size_t(items * cap), 0);
    double keys = 0;
    for (int64_t i = 0; i < items; ++i) {
      const int64_t last = (past + std::min(fresh - 1, (i % tiles * 128 + 127) / group)) / 128;
      for (int64_t b = 0; b <= last; ++b) {
        if ((b + i) % every == 0 || b + 1 >= last) which[size_t(i * cap + counts[size_t(i)]++)] = int32_t(b);
      }
      keys += 128.0 * counts[size_t(i)] * 128.0;  // of packed rows
    }
    BlockList list;
    list.first = TensorView::of(first.data(), DType::kI64, {1});
    list.counts = TensorView::of(counts.data(), DType::kI32, {items});
    list.blocks = TensorView::of(which.data(), DType::kI32, {items, cap});
    scene.args().blocks = &list;
    report(name, 0, 2 * keys * (s.k_dim + s.v_dim), repeats, [&] {
      attend_plain(scene.args(), scene.part(), stream);
    });
  }

  // One decode step through `layers` layers whose slices lie in common pages, as a store lays them out: more
  // than the caches hold.
  void step(const char* name, const Shape& s, int64_t past, int64_t layers) {
    if (skips(name)) return;
    const Tokens x(s, past + 1, 1);
    const int64_t slice = s.page_bytes(), pages = (past + s.page - 1) / s.page;
    Scene scene(s, layers, 0, pages * layers * slice);
    scene.add_row(x, past, 1, 256);
    scene.build();
    scene.step().decode_rows = 1;
    char* base = static_cast<char*>(scene.part().planes[0].data);
    for (int64_t p = 0; p < pages; ++p) {
      for (int64_t l = 1; l < layers; ++l)
        std::memcpy(base + (p * layers + l) * slice, base + p * layers * slice, size_t(slice));
    }
    const double bytes = double(layers * past * s.kv_heads * (s.k_dim + s.v_dim) * block_bytes(s.dtype));
    report(name,
           bytes,
           bytes / block_bytes(s.dtype) * 2 * s.q_heads / s.kv_heads,
           std::max(3, repeats / 10),
           [&] {
             for (int64_t l = 0; l < layers; ++l) {
               *scene.part().index.offset.ptr<int64_t>() = l * slice / 256 * s.page;
               attend_plain(scene.args(), scene.part(), stream);
             }
           });
  }

  // Tokens see the newest `window` keys.
  void window(const char* name, const Shape& s, int64_t past, int64_t fresh, int window) {
    if (skips(name)) return;
    const Tokens x(s, past + fresh, 1);
    Scene scene(s, 1, 0, 256 << 20);
    scene.add_row(x, past, fresh, 256, {}, std::max<int64_t>(0, past - window + 1) / s.page * s.page);
    scene.use_window(window);
    scene.build();
    if (fresh == 1) scene.step().decode_rows = 1;
    const double keys = double(fresh) * std::min<double>(window, double(past));
    report(name, 0, 2 * keys * s.q_heads * (s.k_dim + s.v_dim), repeats, [&] {
      attend_plain(scene.args(), scene.part(), stream);
    });
  }

  // GLM-4.7-Flash: 20 heads of 192 + 64 and 256 channels over 512 + 64 stored ones, weights in F16. FLOP of
  // the absorbed form both times, so that the rates compare as times do.
  void latent(const char* name, int64_t past, int64_t fresh, bool expanded) {
    if (skips(name)) return;
    constexpr int64_t kHeads = 20, kNope = 192, kRope = 64, kLatent = 512, kValue = 256;
    std::vector<uint16_t> w(size_t(kHeads * (kNope + kValue) * kLatent));
    Rng rng(2);
    for (uint16_t& h : w) h = f32_to_f16(rng.normal() * 0.04f);
    LayerKv l;
    l.q_heads = kHeads, l.kv_heads = 1, l.k_dim = kLatent + kRope, l.v_dim = kLatent;
    const TensorView all = TensorView::of(w.data(), DType::kF16, {kHeads, kNope + kValue, kLatent});
    l.w_uk = l.w_uv = all;
    l.w_uk.shape[1] = kNope, l.w_uv.shape[1] = kValue, l.w_uv.data = all.at<char>(0, kNope);
    Shape s;
    s.q_heads = kHeads, s.kv_heads = 1, s.k_dim = l.k_dim, s.v_dim = l.v_dim;
    const Tokens x(s, past + fresh, 1);
    Scene scene(s, 1, 0, 256 << 20);
    scene.add_row(x, past, fresh, 256);
    scene.build();
    Present present = scene.present();
    present.v = present.k, present.v.shape[2] = l.v_dim;
    AttendArgs a = scene.args();
    AttentionPart part = scene.part();
    part.v_in_k = l.v_dim, a.present = &present, a.scale = 0.0625f;
    Arena arena;
    const TensorView q = arena.take(DType::kF32, {fresh, kHeads, kNope + kRope}), absorbed = a.q,
                     latent = a.out;
    const TensorView out = arena.take(DType::kF32, {fresh, kHeads, kValue});
    for (int64_t i = 0; i < q.numel(); ++i) q.ptr<float>()[i] = rng.normal();
    if (expanded) a.q = q, a.out = out, a.expanded = &l;
    const double keys = double(fresh) * double(past) + double(fresh) * double(fresh + 1) / 2;
    report(name, 0, 2 * keys * kHeads * (l.k_dim + l.v_dim), repeats, [&] {
      if (!expanded) absorb_queries(l, q, absorbed, stream);
      attend_plain(a, part, stream);
      if (!expanded) latent_outputs(l, latent, out, stream);
    });
  }

  void logits(const char* name, const Shape& s, int64_t past, int64_t fresh) {
    if (skips(name)) return;
    const Tokens x(s, past + fresh, 1);
    Scene scene(s, 1, 0, 256 << 20);
    scene.add_row(x, past, fresh, 256);
    scene.build();
    std::vector<float> z(size_t(fresh * s.q_heads * (past + 16)));
    scene.args().logits = TensorView::of(z.data(), DType::kF32, {fresh, s.q_heads, past + 16});
    const double bytes = double(past) * s.kv_heads * s.k_dim * block_bytes(s.dtype) + double(z.size()) * 4;
    report(name, bytes, 2 * double(fresh) * double(past) * s.q_heads * s.k_dim, repeats, [&] {
      logits_plain(scene.args(), scene.part(), stream);
    });
  }
};

// What the machine reads in a plain sum: the roof of decode.
void roof(ThreadPool& pool, int repeats, int64_t bytes, const char* name) {
  auto memory = Buffer::allocate(bytes);
  const float* x = reinterpret_cast<const float*>(memory->data());
  std::fill_n(memory->data(), bytes, char(1));
  std::vector<float> sums(256);
  report(name, double(bytes), 0, repeats, [&] {
    pool.run(64, [&](int64_t item, int) {
      const int64_t n = bytes / 4 / 64;
      float s[32] = {};
      for (int64_t i = item * n; i + 32 <= (item + 1) * n; i += 32) {
        for (int j = 0; j < 32; ++j) s[j] += x[i + j];
      }
      sums[size_t(item)] = s[0] + s[13] + s[31];
    });
  });
}

void run_all(int threads, int repeats, const std::string& only) {
  ThreadPool pool(threads);
  Stream stream(pool);
  Bench b{stream, repeats, only};
  Shape smol;
  Shape wide = smol;
  wide.q_heads = 32, wide.kv_heads = 8, wide.k_dim = wide.v_dim = 128;
  Shape qwen = smol;
  qwen.q_heads = 14, qwen.kv_heads = 2;
  Shape exact = smol;
  exact.dtype = DType::kF32;
  std::printf("threads %d, isa %s\n", threads, cpu::to_string(cpu::isa()));
  if (only.empty()) roof(pool, repeats, 6 << 20, "plain sum, 6 MiB");
  if (only.empty()) roof(pool, std::max(3, repeats / 10), 256 << 20, "plain sum, 256 MiB");
  b.attend("decode 8K, 9 of 3 x 64, f16", smol, 8192, 1);
  b.attend("decode 8K, 9 of 3 x 64, f32", exact, 8192, 1);
  b.step("step at 8K, 30 x 9 of 3 x 64, f16", smol, 8192, 30);
  b.step("step at 16K, 24 x 14 of 2 x 64, f16", qwen, 16384, 24);
  b.step("step at 30K, 24 x 14 of 2 x 64, f16", qwen, 30000, 24);
  b.attend("decode 8K, loader, f16", smol, 8192, 1, 1, true);
  b.attend("decode 256, 9 of 3 x 64, f16", smol, 256, 1);
  b.attend("decode 512, 14 of 2 x 64, f16", qwen, 512, 1);
  b.attend("decode 8 rows of 2K, f16", smol, 2048, 1, 8);
  b.attend("decode 8K, 32 of 8 x 128, f16", wide, 8192, 1);
  b.attend("chunk 512 alone", smol, 0, 512);
  b.attend("chunk 512 over 1536", smol, 1536, 512);
  b.attend("chunk 512 over 1536, 32 of 8 x 128", wide, 1536, 512);
  b.attend("chunk 64 over 8K", smol, 8192, 64);
  b.attend("chunk 512 over 16K, 14 of 2 x 64", qwen, 16384, 512);
  b.blocks("chunk 2K over 14K, 14 of 2 x 64, 1 block in 10", qwen, 14336, 2048, 10);
  b.window("window 512, chunk 512 over 8K", smol, 8192, 512, 512);
  b.window("window 512, decode at 8K", smol, 8192, 1, 512);
  b.repeats = std::max(1, repeats / 20);
  b.latent("latent, chunk 512 over 1536", 1536, 512, true);
  b.latent("latent, chunk 512 over 1536, absorbed", 1536, 512, false);
  b.repeats = repeats;
  b.latent("latent, decode 4K", 4096, 1, false);
  b.logits("logits of 32 over 8K", smol, 8192, 32);
  b.logits("logits of 1 over 8K", smol, 8192, 1);
}

}  // namespace
}  // namespace se

int main(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : se::available_cores();
  se::run_all(
      std::max(1, threads), argc > 2 ? std::max(1, std::atoi(argv[2])) : 100, argc > 3 ? argv[3] : "");
  return 0;
}
