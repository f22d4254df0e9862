// sparse-engine: serves large language models at long context. Every error is one line on standard error.
#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdio>
#include <sstream>

#include "cli/cli.h"

int main(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);  // a closed pipe is an error of write, told like any other
  CLI::App app{"SparseEngine: large language models at long context, with a KV plan per request"};
  app.require_subcommand(1);
  app.set_version_flag("--version", "sparse-engine 0.1.0");
  se::Status status;
  se::cli::add_run(app, status);
  se::cli::add_chat(app, status);
  se::cli::add_bench(app, status);
  se::cli::add_eval(app, status);
  se::cli::add_tokenize(app, status);
  se::cli::add_methods(app, status);
  se::cli::add_inspect(app, status);
  if (argc > 1 && argv[1][0] != '-') {
    std::string names;
    bool known = false;
    for (const CLI::App* c : app.get_subcommands({})) {
      known = known || c->get_name() == argv[1];
      names += (names.empty() ? "" : ", ") + c->get_name();
    }
    if (!known) {
      std::fprintf(
          stderr, "sparse-engine: unknown command '%s', expected one of: %s\n", argv[1], names.c_str());
      return 2;
    }
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& e) {  // --help, --version
    std::ostringstream text;
    app.exit(e, text, text);
    se::cli::Out out;
    out.write(text.str());
    status = out.finish();
    if (status.ok()) return 0;
  } catch (const CLI::ParseError& e) {
    std::fprintf(stderr, "sparse-engine: %s (--help lists the options)\n", e.what());
    return 2;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "sparse-engine: %s\n", e.what());
    return 1;
  }
  if (status.ok()) return 0;
  std::fprintf(stderr, "sparse-engine: %s\n", status.message().c_str());
  return 1;
}
