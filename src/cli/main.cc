// sparse-engine: serves large language models at long context. Every error is one line on standard error.
#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdio>

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
  se::cli::add_tokenize(app, status);
  se::cli::add_methods(app, status);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& e) {  // --help, --version
    return app.exit(e);
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
