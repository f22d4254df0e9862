// sparseengine/engine.h -- the engine as its front ends see it (command line, later server and C ABI).
//
// An Engine owns a model, the KV store and one thread that does all the work; calls are messages to that
// thread and may come from any thread. A Session is a conversation whose KV stays between its turns. A
// request names its plan; requests of different plans share steps. Results do not depend on what else runs
// (Request::seed, not arrival, feeds sampling).
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "sparseengine/status.h"

namespace se {

struct EngineOptions {
  std::string model;          // path of a GGUF file
  int64_t context = 0;        // most tokens of a sequence; 0: the model's, at most 32768
  int threads = 0;            // 0: the cores this process may use
  int64_t kv_bytes = 0;       // of the KV arena; 0: 40 % of the memory that is available
  int64_t step_tokens = 512;  // token budget of a step: decode rows first, the rest for prompts
  int max_rows = 64;          // sequences in a step
  bool exact = false;         // F32 from dequantised weights (and F32 KV)
  std::function<void(double done)> on_load;  // progress of loading, 0 .. 1; may be empty
};

struct Sampling {
  float temperature = 0;  // 0: greedy
  int top_k = 0;          // 0: off
  float top_p = 1, min_p = 0;
  uint64_t seed = 0;
  // Applied to the logits before all of the above, in this order (as vLLM does).
  std::vector<int32_t> allowed_ids;                   // empty: all
  std::vector<std::string> bad_words;                 // texts that must not appear in the answer
  std::vector<std::pair<int32_t, float>> logit_bias;  // added to the logit of a token
  float repetition_penalty = 1;                       // > 0; of tokens in prompt or answer
  float frequency_penalty = 0, presence_penalty = 0;  // -2 .. 2; of tokens in the answer
};

struct Request {
  std::vector<int32_t> ids;  // prompt tokens (of this turn, in a session)
  std::string plan;          // plan text; ignored in a session that has one
  // A session whose tokens stand before `ids`: the answer is that to session_ids(base) + ids under `plan`.
  // Where the plan computes prompts as the session's does, its K/V is taken over (Usage::cached_tokens); else
  // all is computed anew. The session stays as it is, and takes no turn meanwhile.
  uint64_t base = 0;
  int64_t max_tokens = 128;
  Sampling sampling;
  int n = 1;                      // answers to draw; they share the prompt's KV until they part
  std::vector<std::string> stop;  // stop strings: end the answer
  std::vector<int32_t> stop_ids;  // tokens that end the answer, beside the model's own
  bool include_stop = false;      // the stop string is part of the text
  bool ignore_eos = false;
  bool skip_special = true;     // special tokens give no text
  int64_t min_tokens = 0;       // before so many no end token is sampled and no stop string looked for
  int64_t truncate_prompt = 0;  // > 0: only the last so many ids of the prompt; -1: as many as fit; 0: refuse
  int logprobs = -1;            // alternatives per answer token; -1: none
  int prompt_logprobs = -1;     // alternatives per prompt token; -1: none
  bool trace = false, trace_weights = false;  // on_kept and on_read are wanted; on_read with weights (slower)
  // Evaluation: the answer is these tokens, whatever the model says; max_tokens, ends and stops do not
  // matter.
  std::vector<int32_t> forced;
};

struct TokenAlternatives {                     // raw log-probabilities, before temperature
  int32_t id = 0;                              // the token that is there
  float logprob = 0;                           // of it
  std::vector<std::pair<int32_t, float>> top;  // the best, best first
};

// What the step that made one answer token read in one layer (all heads of it alike).
struct ReadTrace {
  int64_t step = 0;  // index of the answer token; the first comes from the prompt, without a step
  int layer = 0;
  std::span<const int32_t> positions;  // logical, ascending; the token that was put in is left out
  std::span<const float> weights;      // attention probability of each, mean over the query heads
};

struct KvUsage {
  std::string plan;            // canonical
  int64_t logical_tokens = 0;  // forwarded in the sequence's life
  double resident_tokens = 0;  // mean over full-attention layers; the largest beside it
  int64_t resident_tokens_max = 0;
  int64_t resident_bytes = 0, peak_bytes = 0;                      // counted by the store
  int64_t predicted_resident_bytes = 0, predicted_peak_bytes = 0;  // priced before running
  int64_t dense_bytes = 0;  // what the same tokens would take under `dense`
  double read_tokens = 0;   // mean per decode step and full-attention layer
  double read_ratio = 1;    // of the tokens that dense would read
  // Of the keys that dense's prompt tiles read, the share that this prompt's did: mean over the
  // full-attention layers; and by layer, empty where the plan lets prompts read all.
  double prompt_read_ratio = 1;
  std::vector<float> prompt_read_by_layer;
};

struct Usage {
  int64_t prompt_tokens = 0, completion_tokens = 0;
  int64_t cached_tokens = 0;  // of the prompt: taken over from Request::base
  KvUsage kv;
};

struct Timing {
  double queue_s = 0, prefill_s = 0, first_token_s = 0, decode_s = 0;  // first_token_s: from submission
  std::vector<float> token_s;                                          // seconds of each decode step
};

enum class Finish : uint8_t { kStop, kLength, kCancelled, kError };
const char* to_string(Finish finish);  // "stop", "length", "cancelled", "error"

struct Answer {
  int choice = 0;  // which of the request's n
  std::vector<int32_t> ids;
  std::string text;  // without special tokens and stop string, unless the request wants them
  std::vector<TokenAlternatives> logprobs,
      prompt_logprobs;  // prompt: entry i is of prompt token i; the first has no logprob
  Finish finish = Finish::kStop;
  Status error;  // kError
  Usage usage;
  Timing timing;
};

// Called on the engine's thread; must return quickly. Any may be empty.
struct Callbacks {
  std::function<void(const std::string& piece, int choice)> on_text;  // whole UTF-8 characters
  // Raw logits f32 [vocab] that answer token `index` is drawn from; valid during the call.
  std::function<void(std::span<const float> logits, int64_t index, int choice)> on_logits;
  std::function<void(int64_t done, int64_t total)>
      on_prefill;  // prompt tokens forwarded (layer-major: scaled)
  // Request::trace. Kept: positions that a layer holds once the prompt is through. Both valid during the
  // call.
  std::function<void(int layer, std::span<const int32_t> positions)> on_kept;
  std::function<void(const ReadTrace& read, int choice)> on_read;
  std::function<void(Answer answer)> on_done;  // exactly once for each choice, last of its calls
};

struct ModelInfo {
  std::string name, architecture, path, weight_types, isa;
  int64_t context = 0, trained_context = 0, vocab = 0, parameters = 0, weight_bytes = 0, kv_limit_bytes = 0;
  int layers = 0, threads = 0;
  int full_layers = 0;  // of them those with full attention: plans act on these, codecs on windowed ones too
  bool has_chat_template = false, exact = false;
  Sampling
      recommended;  // what the model's generation_config.json says, where it does; else the defaults above
};

struct ChatMessage {
  std::string role, content;
};

// A stretch of an answer, as the marks of the model's chat template part it.
struct AnswerPart {
  enum class Kind : uint8_t { kContent, kReasoning, kToolCall };
  Kind kind = Kind::kContent;
  std::string text;  // without the marks
};

struct PlanPrice {  // what a request would cost (PlanCost in docs/plan-language.md)
  std::string plan;
  int64_t resident_bytes = 0, peak_bytes = 0, transient_bytes = 0, read_bytes = 0, dense_bytes = 0;
  double resident_tokens = 0, read_tokens = 0;
};

class Engine {
 public:
  static Result<std::unique_ptr<Engine>> open(EngineOptions options);
  ~Engine();  // cancels what runs, joins the thread

  const ModelInfo& info() const;

  // Text to ids and back. special: parse special tokens written in the text; bos: add what the model wants
  // added.
  Result<std::vector<int32_t>> tokenize(const std::string& text, bool add_special, bool parse_special) const;
  std::string detokenize(std::span<const int32_t> ids, bool skip_special) const;
  // The prompt of a conversation through the model's chat template; contents are encoded with special tokens
  // turned off.
  Result<std::vector<int32_t>> chat_ids(const std::vector<ChatMessage>& messages,
                                        bool add_generation_prompt) const;
  // What goes on after the last assistant message's content, to continue in a session without tokenising
  // history again: the end of that message, the messages after it, the generation prompt.
  Result<std::vector<int32_t>> chat_turn_ids(const std::vector<ChatMessage>& messages) const;

  // Parts an answer to chat_ids(..., true): <think>, <tool_call>, where the model's template has them.
  std::vector<AnswerPart> answer_parts(const std::string& answer) const;

  // Refuses at once (through on_done with kError): bad plan text, a prompt over the context, a peak over the
  // KV arena.
  uint64_t submit(Request request, Callbacks callbacks);
  void cancel(uint64_t id);  // on_done comes with kCancelled and what was made so far
  Answer run(Request request, Callbacks callbacks = {});  // submit and wait; of n answers, the first
  std::vector<Answer> run_all(Request request, Callbacks callbacks = {});  // all n, in order of choice

  // A conversation under one plan: KV stays between turns. One turn at a time.
  Result<uint64_t> open_session(const std::string& plan);
  uint64_t submit_turn(uint64_t session, Request request, Callbacks callbacks);
  Answer run_turn(uint64_t session, Request request, Callbacks callbacks = {});  // submit_turn and wait
  std::vector<int32_t> session_ids(uint64_t session) const;  // forwarded so far: prompts and answers
  void close_session(uint64_t session);
  // A session between turns, its KV as it lies, in a file (written whole or not at all; checksummed), and a
  // session that goes on from it exactly as the saved one would have. `note` travels along. Loading refuses,
  // naming file and reason: damage, other weights, another mode of computing, a longer context, no room in
  // the KV arena.
  struct SavedSession {
    uint64_t session = 0;
    std::string plan, note;
    int64_t tokens = 0;
  };
  Status save_session(uint64_t session, const std::string& path, const std::string& note = {});
  Result<SavedSession> load_session(const std::string& path);

  Result<PlanPrice> price(const std::string& plan, int64_t prompt, int64_t max_new) const;

  // For benchmarks: KV filled with synthetic values instead of a prefill; `tokens` of them per row.
  struct BenchCase {
    std::string plan;
    int64_t prompt = 0, decode = 0, depth = 0;
    int batch = 1;
    bool synthetic_fill = false;
    std::string kv_save;  // the first row at its depth goes into this file, as of save_session
    // The depth comes from this session (of this plan, or of one that computes prompts alike), which stays as
    // it is: rows fork it. 0: it is made.
    uint64_t from = 0;
    // The decode steps in turns with those of as many rows of the same plan that begin at depth 0: nine of
    // each, so that both see the machine in the same state.
    bool in_turn = false;
  };
  struct BenchResult {
    std::vector<double> seconds;  // one per timed step (decode) or one for the prompt
    double total_s = 0;
    int64_t kv_bytes = 0, peak_kv_bytes = 0;      // of the whole batch, counted
    double resident_tokens = 0, read_tokens = 0;  // per row, means over full-attention layers
    double prompt_read_ratio = 1;  // as KvUsage's, of all prompts of the row, the depth's included
    // in_turn: by turn, the time of its steps over that of the steps from depth 0, the first of each left
    // out.
    std::vector<double> over_depth_0;
    PlanPrice price;  // of one row
  };
  Result<BenchResult> bench(const BenchCase& c);

  struct Stats {
    int64_t live_bytes = 0, live_pages = 0, peak_bytes = 0, running = 0, waiting = 0;
  };
  Stats stats() const;
  // Waits until nothing runs or waits.
  void drain();

  struct Impl;

 private:
  Engine();
  std::unique_ptr<Impl> impl_;
};

// The stages this build has, as text table or JSON (one line an object); matrix: which pairs compose.
std::string methods_table(bool matrix, bool json);

}  // namespace se
