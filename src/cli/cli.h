// cli/cli.h -- what the commands of `sparse-engine` share: output that notices a closed pipe, progress lines,
// options.
#pragma once
#include <chrono>
#include <string>
#include <vector>

#include "sparseengine/engine.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace se::cli {

// Standard output. A failed write (closed pipe, full disk) is remembered; finish() tells.
class Out {
 public:
  void write(const std::string& text);
  Status finish();  // flushes

 private:
  int error_ = 0;
};

// One line on standard error that rewrites itself, with an ETA; silent unless standard error is a terminal.
class Progress {
 public:
  explicit Progress(std::string label, std::string unit = {});
  void update(int64_t done, int64_t total);
  void clear();
  void stop();  // clears and stays silent: what follows on the terminal is not to be rewritten

 private:
  std::string label_, unit_;
  bool on_ = false, shown_ = false;
  std::chrono::steady_clock::time_point start_, last_;
};

struct ModelFlags {  // -m -c -t --compute --kv-size
  std::string model;
  int64_t context = 0;
  int threads = 0;
  std::string compute = "default", kv_size;
  void add(CLI::App& app);
  Result<std::unique_ptr<Engine>> open() const;  // shows loading progress
};

// What a prompt goes on from.
struct Talk {
  uint64_t session = 0;               // 0: none, the prompt stands alone
  bool goes_on = false;               // the session has tokens
  bool other_plan = false;            // than the session's: its tokens serve as the beginning (Request::base)
  std::string plan;                   // of the answer
  std::vector<ChatMessage> messages;  // so far, if it is a conversation; empty: plain text
};

struct KvFiles {  // --kv-save --kv-load
  std::string save, load;
  void add(CLI::App& app);
  Result<Talk> open(Engine& engine, const std::string& plan, bool plan_given) const;
  Status store(Engine& engine, const Talk& talk) const;  // if there is something to save to
};

struct PromptFlags {  // -p -f --ids --system --raw, or standard input
  void add(CLI::App& app);
  // Ids of the prompt, through the chat template where there is one and --raw is not given. What goes on from
  // plain text is plain text. Messages are added to `talk`.
  Result<std::vector<int32_t>> read(const Engine& engine, Talk& talk) const;
  Result<std::vector<int32_t>> read(const Engine& engine) const;

 private:
  std::string text_, file_, ids_file_, system_;
  bool raw_ = false;
  CLI::Option* given_ = nullptr;  // -p
};

struct SamplingFlags {  // --temp --top-k --top-p --min-p --seed, penalties, bias
  void add(CLI::App& app);
  // What was given; the rest as the model recommends. Texts like --logit-bias 5=-100 are read here, values
  // are checked by the engine.
  Result<Sampling> read(const ModelInfo& model) const;

 private:
  CLI::App* app_ = nullptr;
  Sampling values_;
  std::vector<std::string> bias_;
};

Result<std::string> read_file(const std::string& path);  // "-": standard input
// Decimals separated by white space; "-": standard input.
Result<std::vector<int32_t>> read_ids(const std::string& path);
Status write_file(const std::string& path, const std::string& text);
std::string human_bytes(double bytes);          // "1.25 MiB"
std::string usage_lines(const Answer& answer);  // for people: what the plan saved and cost

// Each command adds itself to `app` and leaves its exit status in `status` when it ran.
void add_run(CLI::App& app, Status& status);
void add_chat(CLI::App& app, Status& status);
void add_tokenize(CLI::App& app, Status& status);
void add_methods(CLI::App& app, Status& status);
void add_bench(CLI::App& app, Status& status);
void add_eval(CLI::App& app, Status& status);
void add_inspect(CLI::App& app, Status& status);
void add_inspect_model(CLI::App& inspect, Status& status);  // `inspect model`

}  // namespace se::cli
