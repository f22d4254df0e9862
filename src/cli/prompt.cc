// Where a prompt comes from.
#include <unistd.h>

#include <CLI/CLI.hpp>

#include "base/fmt.h"
#include "cli/cli.h"

namespace se::cli {

void PromptFlags::add(CLI::App& app) {
  CLI::Option* p = app.add_option("-p,--prompt", text_, "the prompt");
  CLI::Option* file = app.add_option("-f,--file", file_, "read the prompt from a file");
  CLI::Option* ids =
      app.add_option("--ids", ids_file_, "the prompt as token ids: decimals separated by white space");
  p->excludes(file)->excludes(ids);
  file->excludes(ids);
  app.add_option("--system", system_, "system message");
  app.add_flag("--raw", raw_, "no chat template: the prompt as it is");
  given_ = p;
}

Result<std::vector<int32_t>> PromptFlags::read(const Engine& engine) const {
  Talk alone;
  return read(engine, alone);
}

Result<std::vector<int32_t>> PromptFlags::read(const Engine& engine, Talk& talk) const {
  if (talk.goes_on && !system_.empty()) return invalid("--system comes first, and what was loaded has begun");
  if (!ids_file_.empty()) {
    talk.messages.clear();
    return read_ids(ids_file_);
  }
  std::string text = text_;
  if (given_->count() == 0) {
    if (file_.empty() && ::isatty(0))
      return invalid("no prompt: give -p TEXT, -f FILE, --ids FILE, or text on standard input");
    SE_ASSIGN(text, read_file(file_.empty() ? "-" : file_));
  }
  if (raw_ || !engine.info().has_chat_template || (talk.goes_on && talk.messages.empty())) {
    talk.messages.clear();
    return engine.tokenize(text, !talk.goes_on, true);
  }
  if (!system_.empty()) talk.messages.push_back({"system", system_});
  talk.messages.push_back({"user", text});
  return talk.goes_on ? engine.chat_turn_ids(talk.messages) : engine.chat_ids(talk.messages, true);
}

}  // namespace se::cli
