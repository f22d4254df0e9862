// The pictures of an evaluation, as SVG: readable in light and dark pages, no fonts or scripts from
// elsewhere.
#include <algorithm>
#include <cmath>
#include <set>

#include "base/fmt.h"
#include "eval/eval.h"

namespace se::eval {
namespace {

constexpr const char* kInk = "#1b2733";
constexpr const char* kFaint = "#7b8794";

std::string escaped(const std::string& text) {
  std::string out;
  for (char c : text) {
    if (c == '&') {
      out += "&amp;";
    } else if (c == '<') {
      out += "&lt;";
    } else if (c == '>') {
      out += "&gt;";
    } else {
      out += c;
    }
  }
  return out;
}

std::string words(
    double x, double y, const std::string& text, int size, const char* colour, const char* anchor) {
  return format("<text x=\"{:.1f}\" y=\"{:.1f}\" font-size=\"{}\" fill=\"{}\" text-anchor=\"{}\">{}</text>\n",
                x,
                y,
                size,
                colour,
                anchor,
                escaped(text));
}

std::string open_svg(double width, double height, const std::string& title) {
  return format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0:.0f} {1:.0f}\" width=\"{0:.0f}\" "
      "height=\"{1:.0f}\" "
      "font-family=\"system-ui, sans-serif\" role=\"img\">\n<title>{2}</title>\n"
      "<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n",
      width,
      height,
      escaped(title));
}

// 0: red, 1/2: sand, 1: green.
std::string heat(double v) {
  const auto mix = [](double a, double b, double t) { return int(a + (b - a) * t + 0.5); };
  const double t = std::clamp(v, 0.0, 1.0) * 2;
  const int r = t < 1 ? mix(200, 240, t) : mix(240, 60, t - 1);
  const int g = t < 1 ? mix(72, 205, t) : mix(205, 150, t - 1);
  const int b = t < 1 ? mix(60, 130, t) : mix(130, 90, t - 1);
  return format("#{:02x}{:02x}{:02x}", r, g, b);
}

std::string tokens(int64_t n) {
  return n >= 1024 && n % 1024 == 0 ? format("{}K", n / 1024) : format("{}", n);
}

}  // namespace

std::string needle_map(const std::vector<Record>& records, const std::vector<std::string>& plans) {
  std::set<int64_t> lengths;
  std::set<double> depths;
  for (const Record& r : records) {
    if (r.suite == "needle") lengths.insert(r.length), depths.insert(r.depth);
  }
  if (lengths.empty()) return {};
  const double cell_w = std::max(26.0, 150.0 / double(lengths.size())), cell_h = 16, left = 56, top = 92;
  const double panel_w = cell_w * double(lengths.size()) + 40, panel_h = cell_h * double(depths.size()) + 74;
  const size_t columns =
      std::max<size_t>(1, std::min<size_t>(plans.size(), size_t(1000 / std::max(panel_w, 330.0))));
  const double step = std::max(panel_w, 330.0);
  const size_t rows = (plans.size() + columns - 1) / columns;
  std::string s =
      open_svg(left + step * double(columns), top + panel_h * double(rows) + 10, "Needle in a haystack");
  s += words(16, 30, "Is a planted fact found?", 18, kInk, "start");
  s += words(16,
             52,
             "Rows: how deep in the prompt it lies. Columns: prompt tokens. A panel for each plan.",
             12,
             kFaint,
             "start");
  for (size_t p = 0; p < plans.size(); ++p) {
    const double x0 = left + step * double(p % columns), y0 = top + panel_h * double(p / columns);
    s += words(x0, y0 - 8, plans[p].size() > 52 ? plans[p].substr(0, 50) + "…" : plans[p], 11, kInk, "start");
    size_t i = 0;
    for (double depth : depths) {
      size_t j = 0;
      for (int64_t length : lengths) {
        double sum = 0, n = 0;
        for (const Record& r : records) {
          if (r.suite == "needle" && r.plan == plans[p] && r.length == length && r.depth == depth)
            sum += r.score, ++n;
        }
        const double x = x0 + cell_w * double(j), y = y0 + cell_h * double(i);
        s += format(
            "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" fill=\"{}\" "
            "stroke=\"#ffffff\"><title>{} "
            "tokens, depth {:.0f} %: {}</title></rect>\n",
            x,
            y,
            cell_w,
            cell_h,
            n > 0 ? heat(sum / n) : "#e4e7eb",
            length,
            100 * depth,
            n > 0 ? format("{:.0f} % found", 100 * sum / n) : std::string("not run"));
        if (i == 0)
          s += words(
              x + cell_w / 2, y0 + cell_h * double(depths.size()) + 14, tokens(length), 10, kFaint, "middle");
        ++j;
      }
      if (p % columns == 0)
        s += words(x0 - 6, y0 + cell_h * double(i) + 12, format("{:.0f} %", 100 * depth), 10, kFaint, "end");
      ++i;
    }
  }
  return s + "</svg>\n";
}

std::string quality_map(const std::vector<Summary>& all) {
  if (all.empty()) return {};
  const bool questions =
      std::any_of(all.begin(), all.end(), [](const Summary& s) { return !s.score.empty(); });
  const auto quality = [&](const Summary& s) {  // 0 .. 1, or -log10 of the divergence
    if (!questions) return -std::log10(std::max(s.kl, 1e-6));
    double sum = 0;
    for (const auto& [suite, v] : s.score) sum += v;
    return s.score.empty() ? 0 : sum / double(s.score.size());
  };
  double least = 1;
  for (const Summary& s : all) least = std::min(least, std::max(s.kv_share, 1e-4));
  const double decades = std::max(0.5, -std::log10(least) * 1.08);
  const double low = questions ? 0 : 0, high = questions ? 1 : 6;
  const double left = 70, top = 80, width = 560, height = 360;
  const double key = left + width + 40, line = 19;
  const double total_h = std::max(top + height + 70, top + line * double(all.size()) + 40);
  std::string s = open_svg(key + 470, total_h, "Quality against KV bytes");
  s += words(16, 30, "What quality do the bytes buy?", 18, kInk, "start");
  s += words(
      16,
      52,
      questions
          ? "Mean score of the question suites, by KV bytes resident (dense = 100 %). Up and right is better."
          : "Divergence from dense (KL, log scale), by KV bytes resident (dense = 100 %). Up and right is "
            "better.",
      12,
      kFaint,
      "start");
  const auto x_of = [&](double share) {
    return left + width * (-std::log10(std::clamp(share, 1e-4, 1.0)) / decades);
  };
  const auto y_of = [&](double q) {
    return top + height * (1 - (std::clamp(q, low, high) - low) / (high - low));
  };
  for (double share : {1.0, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01, 0.005}) {
    if (x_of(share) > left + width) break;
    s += format("<line x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1:.1f}\" y2=\"{2:.1f}\" stroke=\"#e4e7eb\"/>\n",
                x_of(share),
                top,
                top + height);
    s += words(x_of(share), top + height + 18, format("{:g} %", 100 * share), 11, kFaint, "middle");
  }
  for (int i = 0; i <= (questions ? 5 : 6); ++i) {
    const double q = questions ? i / 5.0 : i;
    s += format("<line x1=\"{0:.1f}\" x2=\"{1:.1f}\" y1=\"{2:.1f}\" y2=\"{2:.1f}\" stroke=\"#e4e7eb\"/>\n",
                left,
                left + width,
                y_of(q));
    s += words(left - 8,
               y_of(q) + 4,
               questions ? format("{:.0f} %", 100 * q) : format("1e-{}", i),
               11,
               kFaint,
               "end");
  }
  s += words(left + width / 2,
             top + height + 42,
             "KV bytes resident, share of dense (log scale)",
             12,
             kInk,
             "middle");
  for (size_t i = 0; i < all.size(); ++i) {
    const Summary& p = all[i];
    const double hue = 360.0 * double(i) / double(all.size());
    const std::string colour = format("hsl({:.0f},60%,42%)", hue);
    s += format(
        "<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"9\" fill=\"{}\" "
        "fill-opacity=\"0.85\"><title>{}</title></circle>\n",
        x_of(p.kv_share),
        y_of(quality(p)),
        colour,
        escaped(p.plan));
    s += words(x_of(p.kv_share), y_of(quality(p)) + 3.5, format("{}", i + 1), 10, "#ffffff", "middle");
    const double y = top + line * double(i) + 6;
    s += format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"8\" fill=\"{}\"/>\n", key, y - 4, colour);
    s += words(key, y, format("{}", i + 1), 10, "#ffffff", "middle");
    s += words(key + 14, y, p.plan.size() > 66 ? p.plan.substr(0, 64) + "…" : p.plan, 12, kInk, "start");
  }
  return s + "</svg>\n";
}

}  // namespace se::eval
