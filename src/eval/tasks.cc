#include "eval/tasks.h"

#include <algorithm>
#include <array>
#include <set>

#include "base/fmt.h"
#include "base/rng.h"

namespace se::eval {
namespace {

constexpr std::array<const char*, 6> kNames{"ppl", "kld", "recall", "needle", "multikey", "vartrack"};
constexpr int kKeys = 8, kHops = 4;
constexpr size_t kLongest = 600;  // bytes of a sentence; what is longer is cut at a space

constexpr std::array<const char*, 32> kThings{
    "harbour",     "lantern",   "orchard", "foundry",  "granary",  "library", "meadow",    "bakery",
    "lighthouse",  "quarry",    "theatre", "vineyard", "windmill", "chapel",  "brewery",   "aqueduct",
    "observatory", "tannery",   "armoury", "causeway", "dockyard", "embassy", "fountain",  "gatehouse",
    "hospital",    "infirmary", "kiln",    "market",   "nursery",  "palace",  "reservoir", "smithy"};

// A haystack for who brings no text: sentences that say little, in an order drawn anew every time round.
constexpr std::array<const char*, 24> kFiller{"The road along the river was quiet in the morning.",
                                              "Two boats lay at the pier and nobody was about.",
                                              "She closed the window because the wind had turned.",
                                              "A clerk wrote the names of the villages into a ledger.",
                                              "The bread was still warm when the shop opened.",
                                              "He counted the steps to the tower and forgot the number.",
                                              "Rain fell on the roofs until late in the evening.",
                                              "The dog slept under the table and did not stir.",
                                              "They carried the chairs into the garden before noon.",
                                              "A letter came from the north and was read aloud.",
                                              "The teacher drew a map of the valley on the board.",
                                              "Nobody remembered who had planted the old pear tree.",
                                              "The clock in the hall had stopped a week ago.",
                                              "Children were flying kites on the hill behind the mill.",
                                              "The captain asked for another cup of tea and said nothing.",
                                              "There was snow on the mountains although it was May.",
                                              "The carpenter mended the gate and went home early.",
                                              "A train passed the bridge and its lights were gone.",
                                              "Her brother kept bees and sold the honey in town.",
                                              "The soup was thin but there was plenty of it.",
                                              "On Sundays the square was full of people and noise.",
                                              "The lamp in the corner gave a soft yellow light.",
                                              "He walked to the station without looking back once.",
                                              "The books on the upper shelf were covered with dust."};

std::string number(Rng& rng, int digits) {
  std::string s(1, char('1' + rng.below(9)));
  while (int(s.size()) < digits) s += char('0' + rng.below(10));
  return s;
}

std::vector<std::string> distinct_things(Rng& rng, int n) {
  std::vector<std::string> all(kThings.begin(), kThings.end());
  for (int i = 0; i < n; ++i) std::swap(all[size_t(i)], all[size_t(i + rng.below(int64_t(all.size()) - i))]);
  all.resize(size_t(n));
  return all;
}

std::string magic(const std::string& thing, const std::string& number) {
  return format("The magic number of the {} is {}.", thing, number);
}

bool ends_sentence(const std::string& text, size_t i) {
  if (text[i] == '\n') return true;
  return (text[i] == '.' || text[i] == '!' || text[i] == '?') && i + 1 < text.size() &&
         (text[i + 1] == ' ' || text[i + 1] == '\n');
}

}  // namespace

const char* to_string(Suite suite) { return kNames[size_t(suite)]; }

Result<Suite> parse_suite(const std::string& name) {
  std::string all;
  for (size_t i = 0; i < kNames.size(); ++i) {
    if (name == kNames[i]) return Suite(i);
    all += format("{}{}", i ? ", " : "", kNames[i]);
  }
  return invalid(format("suite '{}' is unknown, expected some of: {}", name, all));
}

Haystack::Haystack(std::string text) : text_(std::move(text)) {
  size_t from = 0;
  const auto add = [&](size_t to) {
    while (from < to && (text_[from] == ' ' || text_[from] == '\n')) ++from;
    if (to > from) sentences_.push_back(text_.substr(from, to - from)), begins_.push_back(from);
    from = to;
  };
  for (size_t i = 0; i < text_.size(); ++i) {
    const bool too_long = i - from >= kLongest && text_[i] == ' ';
    if (ends_sentence(text_, i) || too_long) add(text_[i] == '\n' || too_long ? i : i + 1);
  }
  add(text_.size());
}

std::vector<std::string> Haystack::take(int64_t sample, int64_t n) const {
  std::vector<std::string> out;
  if (sentences_.empty()) {
    Rng rng(2026, uint64_t(sample));
    std::vector<std::string> round;
    while (int64_t(out.size()) < n) {
      if (round.empty()) round.assign(kFiller.begin(), kFiller.end());
      const auto at = round.begin() + rng.below(int64_t(round.size()));
      out.push_back(std::move(*at));
      round.erase(at);
    }
    return out;
  }
  const size_t first = size_t(sample) * 7919 % sentences_.size();
  for (int64_t i = 0; i < n; ++i) out.push_back(sentences_[(first + size_t(i)) % sentences_.size()]);
  return out;
}

std::string Haystack::stretch(int64_t sample, int64_t of, int64_t bytes) const {
  if (sentences_.empty() || int64_t(text_.size()) < bytes) return {};
  const size_t last = text_.size() - size_t(bytes);  // the latest place to begin
  const size_t wanted = size_t(double(last) * double(sample) / double(std::max<int64_t>(1, of)));
  const auto at = std::upper_bound(begins_.begin(), begins_.end(), wanted);
  const size_t from = at == begins_.begin() ? 0 : *std::prev(at);
  return text_.substr(from, size_t(bytes));
}

Question make_question(Suite suite, uint64_t seed, int64_t sample, double depth) {
  Rng rng(seed, uint64_t(sample) * 8 + uint64_t(suite));
  Question q;
  if (suite == Suite::kVartrack) {
    std::set<std::string> names;
    while (int(names.size()) < kHops + 1) {
      std::string name;
      for (int i = 0; i < 3; ++i) name += char('A' + rng.below(26));
      names.insert(name);
    }
    q.wanted.assign(names.begin(), names.end());
    for (size_t i = q.wanted.size() - 1; i > 0; --i)
      std::swap(q.wanted[i], q.wanted[size_t(rng.below(int64_t(i) + 1))]);
    const std::string value = number(rng, 5);
    for (int i = 0; i <= kHops; ++i) {
      q.facts.push_back(i == 0 ? format("VAR {} = {}.", q.wanted[0], value)
                               : format("VAR {} = VAR {}.", q.wanted[size_t(i)], q.wanted[size_t(i) - 1]));
      q.depths.push_back(rng.uniform());
    }
    std::sort(q.depths.begin(), q.depths.end());  // a chain is told in order
    q.ask = format(
        "Which variables (VAR) have the value {}, directly or through another variable? List all of them.",
        value);
    q.begin = format("The variables with the value {} are:", value);
    q.answer_tokens = 48;
    return q;
  }
  const int keys = suite == Suite::kMultikey ? kKeys : 1;
  const std::vector<std::string> things = distinct_things(rng, keys);
  for (const std::string& thing : things) {
    const std::string n = number(rng, 5);
    q.facts.push_back(magic(thing, n));
    q.depths.push_back(suite == Suite::kMultikey ? rng.uniform() : depth);
    if (q.wanted.empty()) {
      q.wanted.push_back(n);
      q.ask = format("What is the magic number of the {}?", thing);
      q.begin = format("The magic number of the {} is", thing);
    }
  }
  q.answer_tokens = 24;
  return q;
}

double score(const Question& q, const std::string& answer) {
  double found = 0;
  for (const std::string& w : q.wanted) found += answer.find(w) != std::string::npos;
  return found / double(q.wanted.size());
}

std::string planted(const std::vector<std::string>& sentences, const Question& q) {
  const int64_t n = int64_t(sentences.size());
  std::string out;
  for (int64_t i = 0; i <= n; ++i) {
    for (size_t f = 0; f < q.facts.size(); ++f) {
      if (std::min<int64_t>(n, int64_t(q.depths[f] * double(n) + 0.5)) == i) out += q.facts[f] + " ";
    }
    if (i < n) out += sentences[size_t(i)] + " ";
  }
  if (!out.empty()) out.pop_back();
  return out;
}

}  // namespace se::eval
