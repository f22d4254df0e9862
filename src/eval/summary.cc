#include <algorithm>
#include <cmath>

#include "base/fmt.h"
#include "eval/eval.h"

namespace se::eval {
namespace {

struct Mean {
  double sum = 0;
  int64_t n = 0;
  void add(double v) { sum += v, ++n; }
  double value(double none) const { return n ? sum / double(n) : none; }
};

}  // namespace

std::vector<Summary> summarise(const std::vector<Record>& records, const std::vector<std::string>& plans) {
  std::vector<Summary> out;
  for (const std::string& plan : plans) {
    Summary s;
    s.plan = plan;
    Mean kv, read, nll, kl, top, recall;
    std::map<std::string, Mean> scores;
    for (const Record& r : records) {
      if (r.plan != plan) continue;
      if (r.dense_bytes > 0) kv.add(r.kv_bytes / r.dense_bytes);
      read.add(r.read_ratio);
      if (r.score >= 0) scores[r.suite].add(r.score);
      if (r.nll >= 0) nll.add(r.nll), kl.add(r.kl), top.add(r.same_top);
      if (r.recall >= 0) recall.add(r.recall);
    }
    s.kv_share = kv.value(0), s.read_share = read.value(0);
    for (const auto& [suite, mean] : scores) s.score[suite] = mean.value(0);
    if (nll.n) s.ppl = std::exp(nll.value(0)), s.kl = std::max(0.0, kl.value(0)), s.same_top = top.value(0);
    s.recall = recall.value(-1);
    out.push_back(std::move(s));
  }
  return out;
}

std::string table(const std::vector<Summary>& summaries) {
  bool text = false, recall = false;
  std::map<std::string, bool> suites;
  size_t width = 4;
  for (const Summary& s : summaries) {
    text = text || s.ppl >= 0, recall = recall || s.recall >= 0;
    for (const auto& [suite, v] : s.score) suites[suite] = true;
    width = std::max(width, s.plan.size());
  }
  std::string head = format("| {:<{}} | KV bytes | tokens read |", "plan", width);
  std::string rule = "|:" + std::string(width, '-') + "-|---------:|------------:|";
  for (const auto& [suite, on] : suites) head += format(" {:>8} |", suite), rule += "---------:|";
  if (text) head += "     ppl |  KL, nats | same top |", rule += "--------:|----------:|---------:|";
  if (recall) head += "  recall |", rule += "--------:|";
  std::string out = head + "\n" + rule + "\n";
  for (const Summary& s : summaries) {
    out +=
        format("| {:<{}} | {:>6.1f} % | {:>9.1f} % |", s.plan, width, 100 * s.kv_share, 100 * s.read_share);
    for (const auto& [suite, on] : suites) {
      const auto v = s.score.find(suite);
      out += v == s.score.end() ? format(" {:>8} |", "") : format(" {:>6.1f} % |", 100 * v->second);
    }
    if (text) {
      out += s.ppl >= 0 ? format(" {:>7.3f} | {:>9.5f} | {:>6.1f} % |", s.ppl, s.kl, 100 * s.same_top)
                        : format(" {:>7} | {:>9} | {:>8} |", "", "", "");
    }
    if (recall) out += s.recall >= 0 ? format(" {:>5.1f} % |", 100 * s.recall) : format(" {:>7} |", "");
    out += "\n";
  }
  return out;
}

}  // namespace se::eval
