// --kv-save, --kv-load: conversations whose KV outlives the process.
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "base/fmt.h"
#include "cli/cli.h"

namespace se::cli {
namespace {

// A conversation travels in the note of its file; plain text has none.
std::string to_note(const std::vector<ChatMessage>& messages) {
  if (messages.empty()) return {};
  auto list = nlohmann::ordered_json::array();
  for (const ChatMessage& m : messages) list.push_back({{"role", m.role}, {"content", m.content}});
  return list.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

Result<std::vector<ChatMessage>> from_note(const std::string& note, const std::string& path) {
  std::vector<ChatMessage> messages;
  if (note.empty()) return messages;
  const auto list = nlohmann::json::parse(note, nullptr, /*allow_exceptions=*/false);
  bool good = list.is_array();
  for (size_t i = 0; good && i < list.size(); ++i) {
    const auto& m = list[i];
    good = m.is_object() && m.contains("role") && m["role"].is_string() && m.contains("content") &&
           m["content"].is_string();
    if (good) messages.push_back({m["role"].get<std::string>(), m["content"].get<std::string>()});
  }
  if (!good)
    return invalid(path + ": the note is no conversation: it was saved by something other than run or chat");
  return messages;
}

}  // namespace

void KvFiles::add(CLI::App& app) {
  app.add_option("--kv-save", save, "put the tokens and their KV into this file at the end");
  app.add_option("--kv-load", load, "go on from what --kv-save put into this file");
}

Result<Talk> KvFiles::open(Engine& engine, const std::string& plan, bool plan_given) const {
  Talk talk;
  if (load.empty()) {
    talk.plan = plan;
    if (save.empty()) return talk;
    SE_ASSIGN(talk.session, engine.open_session(plan));
    return talk;
  }
  SE_ASSIGN(const Engine::SavedSession s, engine.load_session(load));
  talk.session = s.session, talk.plan = s.plan, talk.goes_on = true;
  SE_ASSIGN(talk.messages, from_note(s.note, load));
  if (!plan_given) return talk;
  SE_ASSIGN(const PlanPrice wanted, engine.price(plan, 1, 1));
  if (wanted.plan == s.plan) return talk;
  talk.other_plan = true, talk.plan = wanted.plan;
  if (!save.empty())
    return invalid(format("--kv-save under {}: {} was saved under {}, and a conversation keeps its plan",
                          wanted.plan,
                          load,
                          s.plan));
  return talk;
}

Status KvFiles::store(Engine& engine, const Talk& talk) const {
  return save.empty() ? ok() : engine.save_session(talk.session, save, to_note(talk.messages));
}

}  // namespace se::cli
