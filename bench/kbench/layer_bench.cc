#include <algorithm>
#include <cmath>
#include <memory>

#include "base/fmt.h"
#include "kbench/layer_chain.h"

namespace se::kbench {
namespace {

std::string name(const ChainCase& c) {
  return format("batch {}, {}, split {}, arena by {}",
                c.rows,
                c.chosen ? format("quest {} of {}", c.chosen * 16, c.tokens) : format("{} tokens", c.tokens),
                c.split,
                c.layer_major ? "layer" : "page");
}

void time_chain(Bench& b, const ChainWeights& w, const ChainCase& c, bool by_op) {
  Chain chain(c, w, b);
  chain.enqueue(b);
  b.stream().synchronize();
  const auto eager = chain.hidden();
  const auto token = chain.tokens();
  const int layers = w.model().layers;
  const Stats all = b.measure([&] { chain.enqueue(b); });
  const auto replayed = chain.hidden();
  const bool finite = std::all_of(eager.begin(), eager.end(), [](float x) { return std::abs(x) < 1e30f; });
  b.check("chain: a replay gives the eager bits, " + name(c),
          finite && eager == replayed && token == chain.tokens(),
          0,
          true);
  const double distinct = chain.distinct_experts(), want = 128 * (1 - std::pow(15.0 / 16, c.rows));
  b.check("chain: distinct experts as uniform routing gives",
          std::abs(distinct / want - 1) <= 0.05,
          distinct / want - 1,
          true);
  double bytes = 0;
  for (int op = 0; op < kHeadOp; ++op) bytes += chain.layer_bytes(ChainOp(op));
  const Stats body = b.measure([&] { chain.enqueue(b, 1u << kHeadOp); });
  b.report("chain",
           format("{}: 48 layers and head", name(c)),
           bytes * layers + chain.layer_bytes(kHeadOp),
           0,
           all);
  b.report("chain",
           format("{}: a layer ({} kernels, {:.1f} experts)", name(c), chain.kernels(0), distinct),
           bytes,
           0,
           {body.median / layers, body.p10 / layers, body.p90 / layers});
  for (int op = 0; op < kHeadOp && by_op; ++op) {
    if (chain.kernels(0) == chain.kernels(1u << op)) continue;
    const Stats without = b.measure([&] { chain.enqueue(b, 1u << kHeadOp | 1u << op); });
    const double us = (body.median - without.median) / layers;
    b.report("chain",
             format("{}: a layer's {}, by leaving it out", name(c), name_of(ChainOp(op))),
             chain.layer_bytes(ChainOp(op)),
             0,
             {us, us, us});
  }
}

}  // namespace

void layer_cases(Bench& b) {
  const ChainWeights w(ChainModel{}, b);
  ChainCase c;
  for (const int rows : {1, 3, 8, 48}) {
    c.rows = rows, c.layer_major = true;
    if (rows <= 8) {
      c.tokens = 131072, c.chosen = 128, c.split = rows == 1 ? 128 : 256;
      time_chain(b, w, c, true);
      c.layer_major = false;
      if (rows <= 3) time_chain(b, w, c, false);
      c.chosen = 0, c.split = 4096, c.layer_major = true;
      time_chain(b, w, c, false);
    }
    c.tokens = 8192, c.chosen = 0, c.split = rows <= 3 ? 256 : 1024;
    time_chain(b, w, c, true);
  }
}

}  // namespace se::kbench
