#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>

#include "base/fmt.h"
#include "base/hash.h"
#include "eval/divergence.h"
#include "eval/records.h"

namespace se::eval {
namespace {

constexpr int64_t kOwn =
    128;  // last prompt tokens that every plan computes itself: the windows that keepers vote with

// One sample: a prompt, and what comes after it.
struct Sample {
  std::string suite;
  int64_t length = 0, number = 0;
  double depth = -1;
  std::vector<int32_t> ids, forced;
  Question question;  // where nothing is forced
};

struct Run {
  Engine& engine;
  const EvalOptions& options;
  RecordFile& file;
  Haystack haystack;
  std::vector<std::string> plans;  // canonical, dense first
  bool wants_recall = false;
  int64_t done = 0, total = 0;

  Result<std::vector<int32_t>> prompt(const std::string& text, const Question& q) const {
    if (engine.info().has_chat_template) return engine.chat_ids({{"user", text + "\n\n" + q.ask}}, true);
    return engine.tokenize(text + "\n\n" + q.ask + "\n" + q.begin, true, false);
  }

  // A prompt of at most `length` tokens, as long as whole sentences allow.
  Result<Sample> ask(Suite suite, int64_t length, int64_t number) const {
    Sample s;
    s.suite = to_string(suite), s.length = length, s.number = number;
    if (suite == Suite::kNeedle) s.depth = (double(number) + 0.5) / double(options.samples);
    s.question = make_question(suite, options.seed, number, s.depth);
    int64_t least = 0,
            most = length / 4 + 1;  // sentences: the first fits, the second does not (4 tokens at least)
    while (least + 1 < most) {
      const int64_t n = (least + most) / 2;
      SE_ASSIGN(std::vector<int32_t> ids, prompt(planted(haystack.take(number, n), s.question), s.question));
      if (int64_t(ids.size()) > length) {
        most = n;
      } else {
        least = n, s.ids = std::move(ids);
      }
    }
    if (s.ids.empty())
      return invalid(
          format("a {} prompt does not fit into {} tokens, take longer ones", to_string(suite), length));
    return s;
  }

  Result<Sample> stretch(int64_t length, int64_t number) const {
    Sample s;
    s.suite = "text", s.length = length, s.number = number;
    const int64_t wanted = length + options.continue_by;
    for (int64_t bytes = wanted * 4;; bytes *= 2) {
      const std::string text = haystack.stretch(number, options.samples, bytes);
      if (text.empty())
        return invalid(
            format("the text has {} bytes, too few for stretches of {} tokens", options.text.size(), wanted));
      SE_ASSIGN(std::vector<int32_t> ids, engine.tokenize(text, true, false));
      if (int64_t(ids.size()) < wanted) continue;
      s.ids.assign(ids.begin(), ids.begin() + length);
      s.forced.assign(ids.begin() + length, ids.begin() + wanted);
      return s;
    }
  }

  // Share of dense's attention (mean over heads) that lies on what a plan reads, over steps and layers.
  using Attention =
      std::map<std::pair<int64_t, int>, std::vector<float>>;  // of a position, by step and layer
  struct Recall {
    double sum = 0;
    int64_t n = 0;
  };
  static void see_recall(const Attention& dense, const ReadTrace& read, Recall& recall) {
    const auto found = dense.find({read.step, read.layer});
    if (found == dense.end()) return;
    double all = 0, hit = 0;
    for (float w : found->second) all += double(w);
    for (int32_t p : read.positions) hit += double(found->second[size_t(p)]);
    if (all > 0) recall.sum += hit / all, ++recall.n;
  }

  Request request(const Sample& s, const std::string& plan) const {
    Request r;
    r.plan = plan, r.ids = s.ids;
    r.max_tokens = s.question.answer_tokens, r.forced = s.forced;
    return r;
  }

  Status record(const Sample& s,
                const std::string& plan,
                const Answer& a,
                const std::vector<Divergence>& far,
                const Recall& recall) {
    if (a.finish == Finish::kError)
      return Status(a.error.code(), format("{} under {}: {}", s.suite, plan, a.error.message()));
    Record r;
    r.suite = s.suite, r.plan = plan, r.length = s.length, r.sample = s.number, r.depth = s.depth;
    r.prompt_tokens = a.usage.prompt_tokens, r.cached_tokens = a.usage.cached_tokens;
    r.kv_bytes = double(a.usage.kv.resident_bytes), r.peak_bytes = double(a.usage.kv.peak_bytes);
    r.dense_bytes = double(a.usage.kv.dense_bytes), r.read_ratio = a.usage.kv.read_ratio;
    if (s.forced.empty()) {
      r.score = score(s.question, a.text), r.answer = a.text;
    } else {
      r.nll = r.kl = r.same_top = 0;
      for (const Divergence& d : far) {
        const double n = double(far.size());
        r.nll += d.nll / n, r.kl += d.kl / n, r.same_top += d.same_top / n;
      }
      if (recall.n > 0) r.recall = recall.sum / double(recall.n);
    }
    ++done;
    if (options.progress) options.progress(done, total);
    return file.add(std::move(r));
  }

  // The sample under all plans that have no record of it yet.
  Status run(const Sample& s, std::vector<std::string> missing) {
    const bool text = !s.forced.empty();
    SE_ASSIGN(const uint64_t session, engine.open_session("dense"));
    const int64_t shared = int64_t(s.ids.size()) - kOwn;
    if (shared > 0) {
      Request begin;
      begin.ids.assign(s.ids.begin(), s.ids.begin() + shared), begin.max_tokens = 0;
      const Answer a = engine.run_turn(session, std::move(begin));
      if (a.finish == Finish::kError) return a.error;
    }
    const auto from_shared = [&](const std::string& plan) {
      Request r = request(s, plan);
      if (shared > 0) r.base = session, r.ids.erase(r.ids.begin(), r.ids.begin() + shared);
      return r;
    };
    std::vector<std::vector<float>> dense;  // log-probabilities, by forced token
    Attention attention;
    if (text) {
      Callbacks calls;
      std::vector<Divergence> far;
      calls.on_logits = [&](std::span<const float> logits, int64_t i, int) {
        dense.push_back(log_softmax(logits));
        far.push_back(diverge(dense.back(), logits, s.forced[size_t(i)]));
      };
      Request r = from_shared("dense");
      r.trace = r.trace_weights = wants_recall;
      calls.on_read = [&](const ReadTrace& read, int) {
        std::vector<float>& w = attention[{read.step, read.layer}];
        w.assign(s.ids.size() + s.forced.size(), 0);
        for (size_t i = 0; i < read.positions.size(); ++i) w[size_t(read.positions[i])] = read.weights[i];
      };
      const Answer a = engine.run(std::move(r), std::move(calls));
      if (missing.front() == "dense") {
        SE_TRY(record(s, "dense", a, far, wants_recall ? Recall{1, 1} : Recall{}));
        missing.erase(missing.begin());
      }
    }
    std::mutex m;
    std::condition_variable wake;
    size_t over = 0;
    std::vector<Answer> answers(missing.size());
    std::vector<std::vector<Divergence>> far(missing.size());
    std::vector<Recall> recall(missing.size());
    for (size_t i = 0; i < missing.size(); ++i) {
      Callbacks calls;
      if (text)
        calls.on_logits = [&, i](std::span<const float> logits, int64_t at, int) {
          far[i].push_back(diverge(dense[size_t(at)], logits, s.forced[size_t(at)]));
        };
      calls.on_done = [&, i](Answer a) {
        std::lock_guard lock(m);
        answers[i] = std::move(a), ++over;
        wake.notify_one();
      };
      Request r = from_shared(missing[i]);
      r.trace = text && wants_recall;
      calls.on_read = [&, i](const ReadTrace& read, int) { see_recall(attention, read, recall[i]); };
      engine.submit(std::move(r), std::move(calls));
    }
    for (size_t told = 0; told < missing.size();) {
      std::unique_lock lock(m);
      wake.wait(lock, [&] { return over > told; });
      told = over;
    }
    engine.close_session(session);
    for (size_t i = 0; i < missing.size(); ++i) SE_TRY(record(s, missing[i], answers[i], far[i], recall[i]));
    return ok();
  }

  std::vector<std::string> missing(const std::string& suite, int64_t length, int64_t number) const {
    std::vector<std::string> out;
    for (const std::string& plan : plans) {
      if (!file.has(suite, length, number, plan)) out.push_back(plan);
    }
    return out;
  }

  std::vector<int64_t> lengths(const std::string& suite) const {
    if (suite == "text" && options.text_length > 0) return {options.text_length};
    return options.lengths;
  }

  Status all(std::vector<std::string> suites) {
    for (int pass = 0; pass < 2; ++pass) {  // count, then run
      for (const std::string& suite : suites) {
        for (int64_t length : lengths(suite)) {
          for (int64_t n = 0; n < options.samples; ++n) {
            const std::vector<std::string> todo = missing(suite, length, n);
            if (pass == 0) total += int64_t(todo.size());
            if (pass == 0 || todo.empty()) continue;
            Suite which = Suite::kPpl;
            if (suite != "text") which = *parse_suite(suite);
            SE_ASSIGN(const Sample s, suite == "text" ? stretch(length, n) : ask(which, length, n));
            SE_TRY(run(s, todo));
          }
        }
      }
    }
    return ok();
  }
};

Status check(const Engine& engine, const EvalOptions& o) {
  if (o.suites.empty()) return invalid("no suite to run");
  if (o.samples < 1) return invalid(format("{} samples: at least 1", o.samples));
  if (o.continue_by < 1) return invalid(format("{} tokens to compare: at least 1", o.continue_by));
  std::vector<int64_t> lengths = o.lengths;
  if (o.text_length != 0) lengths.push_back(o.text_length);
  for (int64_t length : lengths) {
    const int64_t most = engine.info().context - std::max<int64_t>(64, o.continue_by);
    if (length < 64 || length > most)
      return invalid(format(
          "length {}: 64 to {} (the context holds {} with the answer)", length, most, engine.info().context));
  }
  for (Suite s : o.suites) {
    if (!is_question(s) && o.text.empty())
      return invalid(format("suite {} compares on a text, give one with --text FILE", to_string(s)));
  }
  return ok();
}

}  // namespace

Result<std::vector<Record>> evaluate(Engine& engine, const EvalOptions& o) {
  SE_TRY(check(engine, o));
  std::vector<std::string> plans{"dense"}, suites;
  for (const std::string& text : o.plans) {
    SE_ASSIGN(const PlanPrice price, engine.price(text, 1, 1));
    if (std::find(plans.begin(), plans.end(), price.plan) == plans.end()) plans.push_back(price.plan);
  }
  for (Suite s : o.suites) {
    const std::string name = is_question(s) ? to_string(s) : "text";
    if (std::find(suites.begin(), suites.end(), name) == suites.end()) suites.push_back(name);
  }
  if (::mkdir(o.folder.c_str(), 0777) != 0 && errno != EEXIST)
    return io_error(format("cannot make {}: {}", o.folder, std::strerror(errno)));
  const bool recall = std::find(o.suites.begin(), o.suites.end(), Suite::kRecall) != o.suites.end();
  const nlohmann::ordered_json settings{{"model", engine.info().name},
                                        {"weight_bytes", engine.info().weight_bytes},
                                        {"exact", engine.info().exact},
                                        {"text", format("{:016x}", Fingerprint().add(o.text).value())},
                                        {"samples", o.samples},
                                        {"continue_by", o.continue_by},
                                        {"seed", o.seed},
                                        {"recall", recall}};
  SE_ASSIGN(RecordFile file, RecordFile::open(o.folder + "/samples.jsonl", settings.dump()));
  Run run{engine, o, file, Haystack(o.text), plans, recall};
  SE_TRY(run.all(suites));
  return file.records();
}

}  // namespace se::eval
