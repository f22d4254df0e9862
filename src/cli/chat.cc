// sparse-engine chat: a conversation whose KV stays between turns.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <condition_variable>
#include <csignal>
#include <iostream>
#include <memory>
#include <mutex>

#include "base/fmt.h"
#include "cli/cli.h"

namespace se::cli {
namespace {

volatile std::sig_atomic_t interrupted = 0;

struct ChatFlags {
  ModelFlags model;
  SamplingFlags sampling;
  KvFiles kv;
  CLI::Option* plan_option = nullptr;
  std::string plan = "dense", system;
  int64_t max_tokens = 512;
};

// One turn; Ctrl-C ends the answer only.
Answer turn(Engine& engine, uint64_t session, Request request, Out& out) {
  std::mutex m;
  std::condition_variable done;
  bool over = false;
  Answer answer;
  Progress progress("prompt", "tokens");
  Callbacks calls;
  calls.on_prefill = [&](int64_t n, int64_t total) {
    progress.update(n, total);
    if (n == total) progress.clear();
  };
  calls.on_text = [&](const std::string& piece, int) {
    progress.stop();  // the first token comes before the prompt's last report
    out.write(piece);
  };
  calls.on_done = [&](Answer a) {
    std::lock_guard lock(m);
    answer = std::move(a), over = true;
    done.notify_one();
  };
  interrupted = 0;
  const uint64_t id = engine.submit_turn(session, std::move(request), std::move(calls));
  std::unique_lock lock(m);
  while (!over) {
    done.wait_for(lock, std::chrono::milliseconds(50));
    if (interrupted) interrupted = 0, engine.cancel(id);
  }
  progress.clear();
  return answer;
}

Status chat(const ChatFlags& f) {
  SE_ASSIGN(const std::unique_ptr<Engine> engine, f.model.open());
  SE_ASSIGN(const Sampling sampling, f.sampling.read(engine->info()));
  SE_ASSIGN(Talk talk, f.kv.open(*engine, f.plan, f.plan_option->count() > 0));
  if (talk.other_plan)
    return invalid(
        format("{} is a conversation under another plan, which it keeps: leave --plan out", f.kv.load));
  if (talk.goes_on && talk.messages.empty())
    return invalid(format("{} holds plain text, not a conversation: use run", f.kv.load));
  if (talk.goes_on && !f.system.empty())
    return invalid("--system comes first, and what was loaded has begun");
  if (talk.session == 0) {
    SE_ASSIGN(talk.session, engine->open_session(talk.plan));
  }
  const bool terminal = ::isatty(0) && ::isatty(1);
  if (terminal)
    std::fputs("Type a message; /usage, /reset, /quit. Ctrl-C stops an answer, Ctrl-D leaves.\n", stderr);
  struct sigaction action {};
  action.sa_handler = [](int) { interrupted = 1; };
  ::sigaction(SIGINT, &action, nullptr);

  std::vector<ChatMessage>& messages = talk.messages;
  const auto restart = [&] {
    messages.clear();
    if (!f.system.empty()) messages.push_back({"system", f.system});
  };
  if (!talk.goes_on) restart();
  Out out;
  Answer last;
  Status failed;  // by a turn of a script: the exit status tells
  for (std::string line;;) {
    if (terminal) out.write("> ");
    if (!std::getline(std::cin, line)) {
      if (!interrupted) break;  // Ctrl-C at the prompt: a new line
      interrupted = 0;
      std::cin.clear(), std::clearerr(stdin);
      out.write("\n");
      continue;
    }
    if (line.empty()) continue;
    if (line == "/quit") break;
    if (line == "/usage") {
      if (last.usage.prompt_tokens > 0) std::fputs(usage_lines(last).c_str(), stderr);
      continue;
    }
    if (line == "/reset") {
      engine->close_session(talk.session);
      SE_ASSIGN(talk.session, engine->open_session(talk.plan));
      restart();
      continue;
    }
    const bool first = messages.empty() || messages.back().role != "assistant";
    messages.push_back({"user", line});
    Request r;
    SE_ASSIGN(r.ids, first ? engine->chat_ids(messages, true) : engine->chat_turn_ids(messages));
    r.max_tokens = f.max_tokens, r.sampling = sampling;
    Answer a = turn(*engine, talk.session, std::move(r), out);
    if (a.finish == Finish::kError) {  // a turn that cannot be taken changes nothing: the talk goes on
      if (!terminal && failed.ok()) {
        failed = a.error;  // told at the end, with the exit status
      } else {
        std::fprintf(stderr, "sparse-engine: %s\n", a.error.message().c_str());
      }
      messages.pop_back();
      continue;
    }
    out.write("\n");
    messages.push_back({"assistant", a.text});
    if (a.finish == Finish::kCancelled && a.ids.empty())
      messages.resize(messages.size() - 2);  // the question went unread
    last = std::move(a);
    if (Status s = out.finish(); !s.ok()) return s;
  }
  if (terminal) out.write("\n");
  SE_TRY(out.finish());
  if (!engine->session_ids(talk.session).empty()) SE_TRY(f.kv.store(*engine, talk));
  return failed;
}

}  // namespace

void add_chat(CLI::App& app, Status& status) {
  auto f = std::make_shared<ChatFlags>();
  CLI::App* c = app.add_subcommand("chat", "a conversation; its KV stays between turns");
  f->model.add(*c);
  f->sampling.add(*c);
  f->kv.add(*c);
  f->plan_option = c->add_option("--plan", f->plan, "KV plan of the conversation");
  c->add_option("--system", f->system, "system message");
  c->add_option("-n,--max-tokens", f->max_tokens, "most tokens of an answer (default 512)");
  c->callback([f, &status] { status = chat(*f); });
}

}  // namespace se::cli
