// FlashPrefill: checks of means, choices and attention over chosen blocks; times against the dense kernel.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/fmt.h"
#include "kbench/attention_step.h"
#include "kbench/prefill_step.h"
#include "kbench/reference.h"
#include "kernels/attention/decode_cuda.h"

namespace se::kbench {
namespace {

constexpr int64_t kDim = 128, kBlock = 128;
constexpr double kTolerance = 1.0 / 256;  // as dense prefill
// Energies are sums of exponentials of f32 logits of a few units; a keep within this much of the threshold
// may fall either way, and is counted.
constexpr double kTie = 1e-3;

struct Tile {  // as the header says it, counted anew
  TileOf of;
  int item, first, last, from, blocks;
  bool all;
};

class Checked {
 public:
  Checked(const PrefillCase& c, const cuda::BlockChoice& choice, Bench& b)
      : choice_(choice),
        step_(c, b),
        launch_(cuda::sparse_prefill(step_.args(), step_.part(), step_.plan.grid, step_.workspace())) {
    SE_CUDA(cudaMemset(p().list, 0, size_t(launch_.items * p().list_cap * 4)));  // read whole by density()
    SE_CUDA(cudaDeviceSynchronize());
  }
  void choose(Bench& b) { cuda::choose_blocks(launch_, choice_, b.stream()); }
  void attend(Bench& b) { cuda::attend_blocks(launch_, b.stream()); }
  PrefillStep& step() { return step_; }

  // After choose and attend. 1e30: a wrong mean, choice or unwritten number; ties: keeps that went the other
  // way.
  double error(Bench& b, int tokens, int* ties);
  double density() const;  // blocks read of those seen, over all items
  double flops() const;    // of the tiles of 128 x 128 that are read

 private:
  std::vector<Tile> tiles_of(const std::vector<int2>& which) const;
  bool means_good(Bench& b);
  bool choices_good(Bench& b, const std::vector<Tile>& tiles, std::vector<uint8_t>* state, int* ties);
  const cuda::PrefillParams& p() const { return launch_.launch.p; }
  int64_t heads() const { return step_.shape().kv_heads; }
  int64_t blocks() const { return p().mean_blocks; }
  int64_t rows() const { return int64_t(step_.shape().rows.size()); }

  cuda::BlockChoice choice_;
  PrefillStep step_;
  cuda::SparsePrefill launch_;
  cuda::Buffer count_;
};

// Of each token and KV head, in that order.
std::vector<Tile> Checked::tiles_of(const std::vector<int2>& which) const {
  const PrefillCase& c = step_.shape();
  std::vector<Tile> tiles;
  for (const int2& at : which) {
    int before = 0;  // tiles of earlier rows
    for (int r = 0; r < at.x; ++r) before += (c.rows[size_t(r)].tokens * c.group + 127) / 128;
    const PrefillRow& row = c.rows[size_t(at.x)];
    const int token = step_.q_start()[size_t(at.x)], row_tiles = (row.tokens * c.group + 127) / 128;
    const int past = (int(row.runs.size()) * c.unit + 127) / 128;
    for (int h = 0; h < c.kv_heads; ++h) {
      Tile t;
      t.of.row = at.x, t.of.head = h, t.of.tile = (at.y - token) * c.group / 128, t.of.past_blocks = past;
      t.item = (before + row_tiles - 1 - t.of.tile) * c.kv_heads + h;
      t.first = token + t.of.tile * 128 / c.group;
      t.last = token + std::min(row.tokens - 1, (t.of.tile * 128 + 127) / c.group);
      t.from = token - row.before;
      t.blocks = past + (t.last - t.from + 128) / 128, t.of.blocks = t.blocks;
      t.of.active = past + (t.last + 1 - t.from) / 128;
      t.all = row.tokens <= choice_.min_len || t.of.tile >= row_tiles - choice_.last;
      tiles.push_back(t);
    }
  }
  return tiles;
}

bool Checked::means_good(Bench& b) {
  const int64_t n = rows() * heads() * blocks();
  cuda::Buffer k = device_memory(n * kDim * 8), v = device_memory(n * kDim * 8);
  count_ = device_memory(n * 4);
  reference_means(cuda::decode_params(step_.args(), step_.part()),
                  int(rows()),
                  int(blocks()),
                  k.ptr<double>(),
                  v.ptr<double>(),
                  count_.ptr<int>(),
                  b.stream());
  b.stream().synchronize();
  const auto count = download<int>(count_.data(), n);
  const auto bias = download<float>(p().mean_bias, n);
  for (size_t i = 0; i < count.size(); ++i)
    if (count[i] ? std::abs(double(bias[i]) - std::log2(count[i])) > 1e-5 : !(bias[i] < -1e30f)) return false;
  for (bool value : {false, true}) {
    const auto want = download<double>(value ? v.data() : k.data(), n * kDim);
    const auto got = download<uint16_t>(value ? p().mean_v : p().mean_k, n * kDim);
    for (size_t i = 0; i < want.size(); ++i) {
      const uint32_t bits = uint32_t(got[i]) << 16;
      float x = 0;
      std::memcpy(&x, &bits, 4);
      if (!(std::abs(double(x) - want[i]) <= std::abs(want[i]) / 256 + 1e-6)) return false;
    }
  }
  return true;
}

bool Checked::choices_good(Bench& b, const std::vector<Tile>& tiles, std::vector<uint8_t>* state, int* ties) {
  std::vector<TileOf> of;
  for (const Tile& t : tiles) of.push_back(t.of);
  const int64_t n = int64_t(tiles.size());
  cuda::Buffer on = upload(of), scratch = device_memory(n * 128 * blocks() * 8),
               energy_on = device_memory(n * blocks() * 8);
  SE_CUDA(cudaMemset(energy_on.data(), 0, size_t(energy_on.bytes())));
  reference_energies(cuda::decode_params(step_.args(), step_.part()),
                     on.ptr<TileOf>(),
                     int(n),
                     int(blocks()),
                     p().mean_k,
                     count_.ptr<int>(),
                     scratch.ptr<double>(),
                     energy_on.ptr<double>(),
                     b.stream());
  b.stream().synchronize();
  const auto energy = download<double>(energy_on.data(), n * blocks());
  const auto count = download<int>(count_.data(), rows() * heads() * blocks());
  state->assign(size_t(n * blocks()), 0);
  for (size_t i = 0; i < tiles.size(); ++i) {
    const Tile& t = tiles[i];
    const int entries = download<int32_t>(p().list_n + t.item, 1)[0];
    if (entries < 0 || entries > p().list_cap) return false;
    const auto list = download<int32_t>(p().list + t.item * p().list_cap, entries);
    const auto pruned = download<uint32_t>(p().pruned + t.item * blocks() / 32, blocks() / 32);
    uint8_t* s = state->data() + int64_t(i) * blocks();
    int before = -1;
    for (int id : list) {
      if (id <= before) return false;
      before = id;
      if (id < cuda::kMeanTile) {
        if (id >= t.blocks) return false;
        s[id] = 1;
        continue;
      }
      for (int64_t j = 0; j < kBlock; ++j) {
        const int64_t at = (id - cuda::kMeanTile) * kBlock + j;
        if (pruned[size_t(at / 32)] >> (at % 32) & 1) s[at] = 2;
      }
    }
    const double* e = energy.data() + int64_t(i) * blocks();
    double best = 0;
    for (int j = 0; j < t.of.active; ++j) best = std::max(best, e[j]);
    const int own = t.of.past_blocks + (t.first - t.from) / 128;
    for (int j = 0; j < t.blocks; ++j) {
      const double bar = double(choice_.threshold) * best;
      const bool forced = t.all || j < choice_.sink || j > own - choice_.window;
      const bool keep = forced || (j < t.of.active && e[j] >= bar);
      const bool whole = j < t.of.past_blocks || t.from + (j - t.of.past_blocks + 1) * 128 <= t.first;
      const bool some = count[size_t((int64_t(t.of.row) * heads() + t.of.head) * blocks() + j)] > 0;
      const uint8_t want = keep ? 1 : choice_.correction && whole && some ? 2 : 0;
      if (s[j] == want) continue;
      if (!forced && j < t.of.active && std::abs(e[j] - bar) <= kTie * bar) {
        ++*ties;
        continue;
      }
      std::printf("row %d, head %d, tile %d, block %d: %d, not %d (energy %.3g, threshold %.3g)\n",
                  t.of.row,
                  t.of.head,
                  t.of.tile,
                  j,
                  int(s[j]),
                  int(want),
                  j < t.of.active ? e[j] : 0,
                  bar);
      return false;
    }
  }
  return true;
}

double Checked::error(Bench& b, int tokens, int* ties) {
  const int all = step_.tokens(), stride = std::max(1, all / std::max(1, tokens - 1));
  std::vector<int2> which;
  for (int t = 0; t < all; t = t < all - 1 ? std::min(all - 1, t + stride) : all) {
    const auto& s = step_.q_start();
    which.push_back({int(std::upper_bound(s.begin(), s.end(), t) - s.begin()) - 1, t});
  }
  std::vector<uint8_t> state;
  if (!means_good(b)) {
    std::printf("a mean is wrong\n");
    return 1e30;
  }
  if (!choices_good(b, tiles_of(which), &state, ties)) return 1e30;
  const int64_t n = int64_t(which.size()), q_heads = heads() * step_.shape().group;
  cuda::Buffer on = upload(which), state_on = upload(state),
               scratch = device_memory(n * q_heads * (step_.places() + 256 + blocks()) * 8),
               want_out = device_memory(n * q_heads * kDim * 8), want_lse = device_memory(n * q_heads * 8);
  reference_blocks(cuda::decode_params(step_.args(), step_.part()),
                   on.ptr<int2>(),
                   int(n),
                   state_on.ptr<uint8_t>(),
                   int(blocks()),
                   p().mean_k,
                   p().mean_v,
                   count_.ptr<int>(),
                   step_.places() + 256,
                   scratch.ptr<double>(),
                   want_out.ptr<double>(),
                   want_lse.ptr<double>(),
                   b.stream());
  b.stream().synchronize();
  const auto want = download<double>(want_out.data(), n * q_heads * kDim);
  return step_.compare(which, want, download<double>(want_lse.data(), n * q_heads), want);
}

double Checked::density() const {
  const auto& start = step_.q_start();
  const PrefillCase& c = step_.shape();
  std::vector<int2> which;
  for (int r = 0; r < int(rows()); ++r)
    for (int t = 0; t * 128 < c.rows[size_t(r)].tokens * c.group; ++t)
      which.push_back({r, start[size_t(r)] + t * 128 / c.group});
  const auto n = download<int32_t>(p().list_n, int64_t(which.size()) * heads());
  const auto list = download<int32_t>(p().list, int64_t(n.size()) * p().list_cap);
  double read = 0, seen = 0;
  for (const Tile& t : tiles_of(which)) {
    const auto first = list.begin() + t.item * p().list_cap;
    read += double(std::lower_bound(first, first + n[size_t(t.item)], cuda::kMeanTile) - first);
    seen += t.blocks;
  }
  return read / seen;
}

double Checked::flops() const {
  int64_t tiles = 0, items = 0;
  for (const PrefillRow& r : step_.shape().rows) items += (r.tokens * step_.shape().group + 127) / 128;
  for (int32_t n : download<int32_t>(p().list_n, items * heads())) tiles += n;
  return double(tiles) * 4 * 128 * 128 * 128;
}

void check_case(Bench& b, const std::string& what, const PrefillCase& c, const cuda::BlockChoice& choice) {
  if (!b.next_is_ours()) return;
  Checked x(c, choice, b);
  x.choose(b), x.attend(b);
  b.stream().synchronize();
  int ties = 0;
  const double worst = x.error(b, 40, &ties);
  b.check(format("blocks {}: {:.1f} % read, {} ties", what, 100 * x.density(), ties),
          worst <= kTolerance,
          worst,
          true);
}

// A past that is restored first: bit for bit what the same numbers stored in BF16 give.
void check_restored(Bench& b, cuda::DecodeType type) {
  if (!b.next_is_ours()) return;
  cuda::BlockChoice choice;
  choice.min_len = 0, choice.last = 1, choice.threshold = 0.7f;
  PrefillCase c;
  c.type = type, c.page = c.unit = type == cuda::DecodeType::kKivi4 ? 32 : 16;
  c.rows = {{tokens_in_runs(4096, c.unit), 300}, {{}, 20}, {tokens_in_runs(1824, c.unit), 129}};
  PrefillStep coded(c, b);
  const auto attend = [&](PrefillStep& step) {
    const auto s = cuda::sparse_prefill(step.args(), step.part(), step.plan.grid, step.workspace());
    cuda::choose_blocks(s, choice, b.stream()), cuda::attend_blocks(s, b.stream());
    b.stream().synchronize();
    return s.launch.p;
  };
  const cuda::PrefillParams p = attend(coded);
  c.type = cuda::DecodeType::kBF16;
  PrefillStep plain(c, b);
  const auto& planes = plain.part().planes;
  const auto start = download<int64_t>(plain.part().index.start.data, int64_t(c.rows.size()));
  const auto runs = download<int64_t>(plain.part().index.runs.data, plain.part().index.runs.numel());
  for (size_t r = 0; r < c.rows.size(); ++r)
    for (size_t e = 0; e < c.rows[r].runs.size(); ++e)
      for (int h = 0; h < c.kv_heads; ++h) {
        const int64_t from = (int64_t(r) * c.kv_heads + h) * p.past_rows + int64_t(e) * c.unit;
        const int64_t to = run_slot(runs[size_t(start[r]) + e]) / c.page * 256 + h * planes[0].stride[2];
        const size_t bytes = size_t(c.unit * kDim * 2);
        SE_CUDA(cudaMemcpyAsync(planes[0].ptr<char>() + to,
                                p.past_k + from * kDim,
                                bytes,
                                cudaMemcpyDeviceToDevice,
                                b.stream().get()));
        SE_CUDA(cudaMemcpyAsync(planes[1].ptr<char>() + to,
                                p.past_v + from * kDim,
                                bytes,
                                cudaMemcpyDeviceToDevice,
                                b.stream().get()));
      }
  attend(plain);
  b.check(format("blocks {}: as the same in bf16", name_of(type)), plain.out() == coded.out(), 0, true);
}

void time_case(Bench& b, const std::string& shape, const PrefillCase& c) {
  Checked x(c, {}, b);
  x.choose(b), x.attend(b);
  b.stream().synchronize();
  int ties = 0;
  const double worst = x.error(b, 8, &ties);
  const std::string what = format("{}, {:.1f} % of blocks read", shape, 100 * x.density());
  b.check("blocks " + what, worst <= kTolerance, worst, true);
  b.report_flops("choose_blocks", what, 0, worst, b.measure([&] { x.choose(b); }));
  b.report_flops(
      "choose and attend_blocks", what, x.flops(), worst, b.measure([&] { x.choose(b), x.attend(b); }));
}

}  // namespace

void blocks_checks(Bench& b) {
  cuda::BlockChoice choice;
  choice.min_len = 0, choice.last = 1;
  PrefillCase c;
  c.planted = 0.2;
  c.rows = {{tokens_in_runs(8192, 16), 300}};
  check_case(b, "planted", c, choice);
  choice.correction = false;
  check_case(b, "without correction", c, choice);
  choice.correction = true, choice.threshold = 0.7f, c.planted = 0;
  c.rows = {{tokens_in_runs(3000, 16), 700},
            {{}, 900},
            {tokens_in_runs(1, 16), 1},
            {tokens_in_runs(2000, 16), 129, 40}};
  check_case(b, "a ragged past, no past, one token, neighbours seen", c, choice);
  choice.sink = 0, choice.window = 1, choice.last = 0, choice.threshold = 1;
  check_case(b, "the least", c, choice);
  c.per_head = true, c.group = 4, c.kv_heads = 2;
  check_case(b, "a table per KV head, groups of 4", c, choice);
  c.per_head = false, c.group = 1;
  check_case(b, "groups of 1", c, choice);
  choice.min_len = 100000;
  check_case(b, "everything", c, choice);
  check_restored(b, cuda::DecodeType::kE4M3), check_restored(b, cuda::DecodeType::kKivi4);
}

void blocks_cases(Bench& b) {
  PrefillCase c;
  c.rows = {{tokens_in_runs(122880, 16), 8192}};
  for (double planted : {0.08, 0.185}) {
    c.planted = planted;
    time_case(b, "32/4 heads x 128, 8,192 tokens over 122,880 paged", c);
  }
}

}  // namespace se::kbench
